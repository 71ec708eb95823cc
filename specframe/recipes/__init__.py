"""Reading of recipes, and discovery, checking and building of their parts; it never imports torch at run time."""
