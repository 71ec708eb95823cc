"""The engine: one session, its loop, its statistics and its clock."""
