"""The exact distribution of other people's acceptance functions."""
