"""What a bench found, as figures with intervals."""
