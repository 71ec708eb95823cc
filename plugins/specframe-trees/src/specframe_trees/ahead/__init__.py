"""Drafters that work while the target scores, or on another device."""
