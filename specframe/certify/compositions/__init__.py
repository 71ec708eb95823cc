"""The exact distribution of a composition's real code, by enumeration."""
