"""Heads: the maps from a feature drafter's hidden state to logits."""
