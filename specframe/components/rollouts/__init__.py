"""How training unrolls a drafter."""
