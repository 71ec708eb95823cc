"""Where logits become distributions, and where all randomness comes from."""
