"""Drafts from the target's own logits."""
