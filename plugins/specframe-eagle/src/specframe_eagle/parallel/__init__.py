"""P-EAGLE: EAGLE-3's drafter with mask rows, so that all levels of a draft cost one forward pass."""
