"""Conversion of logits to distributions, and the source of all random numbers."""
