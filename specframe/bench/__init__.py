"""Contestants side by side: who decodes what, the figures, the report."""
