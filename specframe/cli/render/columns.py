"""Names and what they mean, as lines for a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

APART = ("* ", "- ", "|", " ")
"""How lines begin that are no running text: lists, tables, code."""
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


def fitted(lines: Iterable[str], columns: int | None) -> list[str]:
    """The lines, those that are too long broken, what follows set in further than the line itself."""
    if columns is None:
        return list(lines)
    return [part for line in lines for part in ([line] if len(line) <= columns else _broken(line, columns))]


def paragraphs(text: str, columns: int | None, indent: int = 0) -> list[str]:
    """A text's lines, set in; where a paragraph has lines that are too long, it is filled anew."""
    margin, lines = " " * indent, list[str]()
    for paragraph in text.split("\n\n"):
        given = [f"{margin}{line}".rstrip() for line in paragraph.splitlines()]
        if columns is None or max(map(len, given), default=0) <= columns:
            lines += given
        elif any(line.startswith(APART) for line in paragraph.splitlines()):
            lines += fitted(given, columns)
        else:
            lines += textwrap.wrap(
                " ".join(paragraph.split()), columns, initial_indent=margin, subsequent_indent=margin
            )
        lines.append("")
    return lines[:-1]


def _broken(line: str, columns: int) -> list[str]:
    margin = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, columns, subsequent_indent=f"{margin}  ") or [line]
