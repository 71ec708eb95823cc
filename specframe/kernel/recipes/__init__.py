"""Recipes as files: read, merged, with the place each value came from."""
