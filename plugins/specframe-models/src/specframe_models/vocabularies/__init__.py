"""Drafters of another vocabulary."""
