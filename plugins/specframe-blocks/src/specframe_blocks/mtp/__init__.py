"""Multi-token prediction heads as drafters."""
