"""Targets: the models whose law is preserved."""
