"""Tree policies: which nodes a draft has."""
