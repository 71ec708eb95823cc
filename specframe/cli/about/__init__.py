"""Commands about what is installed: list, explain, check, begin."""
