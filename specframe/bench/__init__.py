"""Contestants side by side: their runs, the figures, the report. Called, it runs a bench of recipes."""

from specframe._exports import make_callable

make_callable(__name__, "specframe.bench.recipes:bench")
