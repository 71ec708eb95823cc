"""Native passes: C++ for the decoder layers, attention, matrix products and top-k of supported models."""
