"""Training while decoding: a drafter learns what the target answered where its drafts were rejected."""
