"""Figures of a bench, with intervals."""
