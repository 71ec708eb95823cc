"""Drafters that serve any target: nothing, a copy of the text, a smaller model."""
