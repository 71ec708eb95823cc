"""LongSpec's drafter."""
