"""Ollama's API over the same session."""
