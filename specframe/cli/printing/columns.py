"""Names and what they mean, as lines for a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

ROOM = 48
"""The fewest columns that an explanation next to its name gets."""


def terminal_columns() -> int | None:
    """How wide the terminal is; None where the output goes elsewhere, and a line stays a line."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_columns(rows: Iterable[tuple[str, str]], columns: int | None, indent: int = 0) -> list[str]:
    """Names and their explanations as lines of text: side by side, or one below the other in few columns.

    Without a number of columns nothing is wrapped.
    """
    pairs = list(rows)
    margin, longest = " " * indent, max((len(name) for name, _ in pairs), default=0)
    if columns is None:
        return [f"{margin}{name:{longest}}  {about}" for name, about in pairs]
    lines = []
    for name, about in pairs:
        if indent + longest + 2 + ROOM <= columns:
            first, behind = f"{margin}{name:{longest}}  ", " " * (indent + longest + 2)
        else:
            lines += textwrap.wrap(name, columns, initial_indent=margin, subsequent_indent=margin + "  ")
            first = behind = margin + "    "
        lines += textwrap.wrap(about, columns, initial_indent=first, subsequent_indent=behind)
    return lines
