"""What happened while one prompt was decoded, cycle by cycle, as plain data."""
