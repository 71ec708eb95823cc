"""Trained drafters handed to the programs that serve them, and published ones read."""
