"""Stores of text that drafters copy from: built once, read by every session, appended to."""
