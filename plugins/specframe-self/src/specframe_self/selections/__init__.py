"""Sights, the committed tokens that a draft sees."""
