"""A draft and what is decided about it."""
