"""For people who live in transformers: a recipe as the decoding loop of `model.generate`."""
