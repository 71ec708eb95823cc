"""SpecDec++."""
