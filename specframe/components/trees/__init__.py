"""Tree policies: they choose the nodes of a draft tree."""
