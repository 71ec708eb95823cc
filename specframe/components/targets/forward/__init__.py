"""Forward passes over trees: by transformers, compiled, and native."""
