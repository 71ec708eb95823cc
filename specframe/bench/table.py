"""A bench's figures in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from specframe.bench.format import (
    format_alpha,
    format_figure,
    format_intervals,
    format_memory,
    format_optimum,
    format_output,
    format_quality,
    format_share,
    format_value,
    format_workload,
    has_quality,
    is_suspect,
)
from specframe.files.text import open_console, printable_data

WIDEST = 1_000
"""Columns of a table that is printed as wide as it is, at most."""


def print_table(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the contestants side by side, a line each in every table; then tasks, then the caveats."""
    summary = printable_data(summary)
    tables = [_overall(summary), _output(summary)] + ([_by_task(summary)] if len(summary["tasks"]) > 1 else [])
    is_piped = console is None and not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = console or open_console()
    for table in tables:
        # A file or another program has no width to which figures would have to be cut.
        natural = console.measure(table, options=console.options.update(width=WIDEST)).maximum
        console.print(table, width=max(console.width, natural) if is_piped else None, crop=not is_piped)
    for note in summary["notes"]:
        console.print(note, style="bold red" if "LOSSY" in note or "DIFFERS" in note else "yellow")
    console.print("Speedups are paired ratios within this bench; vs plain, vs HF generate.", style="dim")
    console.print(format_intervals(summary), style="dim")


def _overall(summary: Mapping[str, Any]) -> Table:
    table = _side_by_side(format_workload(summary))
    for name in ("tau", "tokens/s", "vs plain", "vs HF", "overhead"):
        table.add_column(name, justify="right")
    for entry in summary["contestants"]:
        figures = entry["overall"]
        cells = ["left out"] if figures is None else _speeds(figures)
        table.add_row(entry["name"], *cells, style="red" if is_suspect(entry) else None)
    return table


def _speeds(figures: Mapping[str, Any]) -> list[str]:
    return [
        format_figure(figures.get("tau")),
        format_value(figures["tokens_per_second"], 1),
        format_figure(figures.get("speedup"), unit="x"),
        format_figure(figures.get("speedup_hf"), unit="x"),
        format_share(figures.get("overhead")),
    ]


def _output(summary: Mapping[str, Any]) -> Table:
    """Agreement of the output, acceptance by depth, memory."""
    table = _side_by_side("\noutput, acceptance and memory")
    table.add_column("output")
    if with_quality := has_quality(summary):
        table.add_column("quality (change)")
    table.add_column("alpha by depth")
    table.add_column("MiB", justify="right")
    for entry in summary["contestants"]:
        if (figures := entry["overall"]) is not None:
            alpha = format_alpha(figures.get("alpha")) + format_optimum(figures.get("optimal_alpha"))
            memory = format_memory(figures["peak_memory_bytes"]).removesuffix(" MiB")
            quality = [format_quality(entry)] if with_quality else []
            style = "red" if is_suspect(entry) else None
            table.add_row(entry["name"], format_output(entry), *quality, alpha, memory, style=style)
    return table


def _side_by_side(title: str) -> Table:
    """A table of the contestants. Names of variants are long, and break where one change ends."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("contestant", min_width=18)
    return table


def _by_task(summary: Mapping[str, Any]) -> Table:
    table = _side_by_side("\nspeedup against plain, and tau, by task")
    for task, prompts in summary["tasks"].items():
        table.add_column(f"{task} ({prompts})", justify="right")
    for entry in summary["contestants"]:
        if entry["overall"] is not None and entry["overall"].get("alpha"):
            cells = [_task_cell(entry["tasks"].get(task)) for task in summary["tasks"]]
            table.add_row(entry["name"], *cells, style="red" if is_suspect(entry) else None)
    return table


def _task_cell(figures: Mapping[str, Any] | None) -> str:
    if not figures or not figures.get("tau"):
        return format_figure(None)
    return f"{format_value(figures.get('speedup'), unit='x')}, {format_value(figures['tau'])}"
