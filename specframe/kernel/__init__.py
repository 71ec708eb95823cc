"""The kernel: words, values and interfaces; it never imports torch at run time."""
