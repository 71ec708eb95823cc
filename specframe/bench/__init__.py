"""Contestants side by side: their runs, the figures, the report."""
