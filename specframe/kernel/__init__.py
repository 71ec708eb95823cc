"""The kernel: values, interfaces and composition; it never imports torch at run time."""
