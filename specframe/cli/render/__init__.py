"""Output of the commands: fitted to the terminal's width; in a pipe, lines are not wrapped."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specframe.files.text import open_console, printable

UNBOUNDED = 100_000
"""Width for pipes and files, larger than any line."""


def terminal_columns() -> int | None:
    """Returns the terminal's width; None if the output goes elsewhere."""
    console = open_console()
    return console.width if console.is_terminal else None


def print_rows(rows: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Prints names and their explanations in two columns."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    _print(Padding(grid, (0, 0, 0, indent)))


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines of text, wrapped to the terminal."""
    for line in lines:
        text = printable(line)
        begin = text.lstrip()
        _print(Padding(Text(begin, overflow="fold"), (0, 0, 0, len(text) - len(begin))))


def _print(renderable: RenderableType) -> None:
    """Prints without the trailing blanks of rich's columns."""
    columns = terminal_columns()
    console = Console(markup=False, emoji=False, highlight=False, width=columns or UNBOUNDED)
    with console.capture() as shown:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in shown.get().split("\n")[:-1]))
