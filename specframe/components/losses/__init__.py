"""Losses that training minimises."""
