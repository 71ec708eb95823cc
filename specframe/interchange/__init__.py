"""Export of trained drafters to the programs that serve them, and import of published ones."""
