"""Training: settings, texts, schedule, state, validation and what the user sees of it."""
