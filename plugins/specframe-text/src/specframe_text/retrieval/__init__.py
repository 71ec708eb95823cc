"""Drafts from a store of texts."""
