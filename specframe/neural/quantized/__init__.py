"""Matrices in 4 or 8 bits a weight, and the kernels that multiply with them on a CPU."""
