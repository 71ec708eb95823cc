"""Comparison of contestants: runs, figures and report. Calling the package runs a bench of recipes."""

from specframe._exports import make_callable

make_callable(__name__, "specframe.bench.recipes:bench")
