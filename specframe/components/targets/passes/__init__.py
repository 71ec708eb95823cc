"""Forward passes over a session's rows: what runs, over which keys and values, and what it leaves behind."""
