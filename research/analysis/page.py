"""The tables of an analysis's page: written in Markdown, and filled in between the page's own marks."""

from __future__ import annotations

import re
from collections.abc import Sequence


def fill(page: str, name: str, text: str) -> str:
    """The page with the text between the table's two marks. Ends the program where the page has no such table."""
    marks = re.compile(f"(<!-- table: {name} -->\n).*?(<!-- /table -->)", re.DOTALL)
    filled, count = marks.subn(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
    if count != 1:
        raise SystemExit(f"the page has no table {name}")
    return filled


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def with_interval(figure: Sequence[float]) -> str:
    """A value with its interval."""
    value, low, high = figure
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
