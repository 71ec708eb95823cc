"""Training that aligns a drafter with its target."""
