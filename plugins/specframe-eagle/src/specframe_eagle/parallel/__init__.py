"""P-EAGLE: EAGLE-3's drafter with mask rows, with which one forward pass drafts all levels."""
