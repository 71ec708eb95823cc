"""Ollama's API over the same rows."""
