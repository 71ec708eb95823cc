"""KV selections: the committed tokens that a draft sees."""
