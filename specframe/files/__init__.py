"""Files that are read and written: prompts, result folders, run.json."""
