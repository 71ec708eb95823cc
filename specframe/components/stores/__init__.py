"""Stores of texts that drafters copy from."""
