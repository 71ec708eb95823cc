"""Training: settings, texts, schedule, state, validation and progress display."""
