"""The terminal, as a place that text from outside is shown in."""

from __future__ import annotations

from rich.console import Console


def open_console(stderr: bool = False) -> Console:
    """A console that shows text as it is: neither markup nor the names of emoji mean anything in it."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
