"""Rollouts: the ways in which training unrolls a drafter."""
