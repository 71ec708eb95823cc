"""What a drafter remembers of each row: its keys and values, and the features not yet read."""
