"""Documents, and the token sequences they become."""
