"""Targets whose matrices have 4 or 8 bits a weight, and the forward pass that computes with them on a CPU."""
