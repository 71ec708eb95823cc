"""Weights of drafters: files, shards, and the layers they start from."""
