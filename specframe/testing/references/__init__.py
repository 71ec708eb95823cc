"""Slow, literal versions of the fast code, to hold the two together."""
