"""Other people's acceptance code, enumerated unmodified."""
