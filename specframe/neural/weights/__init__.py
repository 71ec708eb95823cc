"""Weights of drafters: files, shards, formats and caches."""
