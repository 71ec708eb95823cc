"""Drafts from an excerpt of the prompt."""
