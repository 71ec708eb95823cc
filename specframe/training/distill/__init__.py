"""Training data out of the target itself: it answers prompts, and the dialogues are kept."""
