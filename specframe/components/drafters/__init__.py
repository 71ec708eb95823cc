"""Drafters for any target: no drafts, copies of the text, smaller models."""
