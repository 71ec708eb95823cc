"""What is read and written: prompts, result folders, run.json."""
