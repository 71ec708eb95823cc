"""Drafters that choose which of the target's own layers draft."""
