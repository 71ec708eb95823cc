"""The engine: one session, its loop, its books and its clock."""
