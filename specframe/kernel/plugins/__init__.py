"""Plugins: how they are found, what they register, which of them fit this release."""
