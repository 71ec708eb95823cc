"""The project's own enumerator: the distribution of what the real loop emits, exactly."""
