"""The contest: contestants take turns over the same prompts."""
