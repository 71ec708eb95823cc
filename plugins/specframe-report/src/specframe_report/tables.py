"""A bench's values as tables: for the terminal, and for papers and programs in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tabulate import tabulate

from specframe import InputError
from specframe.plugin import open_console, printable_data
from specframe_report.format import (
    NONE,
    format_alpha,
    format_figure,
    format_intervals,
    format_literal,
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

WIDEST = 1_000
"""Maximum width in columns of a table that is printed at its full width."""
FORMATS: dict[str, tuple[str, Callable[[str], str]]] = {
    "table.md": ("github", format_literal),
    "table.tex": ("latex_booktabs", str),
}
"""Files of the table of contestants: tabulate's format, which escapes LaTeX, and the function that escapes names."""
FIGURES = "figures.csv"
"""The file of all values."""
FIELDS = ("contestant", "prompts", "figure", "value", "low", "high")


Column = Callable[[Mapping[str, Any]], str]
"""Function that returns the cell of a contestant."""


def write_tables(summary: Mapping[str, Any], folder: Path, columns: Sequence[str] = ()) -> list[Path]:
    """Writes the tables into the folder, and returns their files. Raises OSError if that fails."""
    files = []
    for name, (form, literal) in FORMATS.items():
        files.append(folder / name)
        head, rows = overall_table(summary, literal, columns)
        text = tabulate(rows, head, tablefmt=form, disable_numparse=True)
        files[-1].write_text(f"{text}\n\n{literal(MARKED)}\n", encoding="utf-8")
    files.append(folder / FIGURES)
    with files[-1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows(_lines(summary))
    return files


def overall_table(
    summary: Mapping[str, Any], literal: Callable[[str], str] = str, columns: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Returns the table of contestants, names made `literal`: the columns' names, and a row of texts each."""
    entries = [entry for entry in summary["contestants"] if entry["overall"] is not None]
    return side_by_side(entries, lambda entry: literal(str(entry["name"])), columns)


def side_by_side(
    entries: Sequence[Mapping[str, Any]], name: Column, columns: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Returns the columns' names, and a row of texts for each contestant, called by `name`.

    Without `columns`, these are the default ones, and quality if an answer was checked.
    """
    rated = any(format_quality(entry) != NONE for entry in entries)
    chosen = columns or [column for column in USUAL if column != "quality" or rated]
    shown = [COLUMNS[column] for column in chosen]
    return ["contestant", *(head for head, _ in shown)], [[name(e), *(cell(e) for _, cell in shown)] for e in entries]


def require_columns(names: Sequence[str]) -> None:
    """Raises InputError for a column that tables do not have."""
    if unknown := [name for name in names if name not in COLUMNS]:
        raise InputError(f"there is no column {unknown[0]!r} (columns: {', '.join(COLUMNS)})")


def _column(name: str, form: Callable[[Any], str]) -> Column:
    return lambda entry: form(entry["overall"].get(name))


def _marked(name: str) -> Column:
    """Formats a speedup, with a mark if its interval does not contain 1."""

    def cell(entry: Mapping[str, Any]) -> str:
        figure = entry["overall"].get(name)
        text = format_figure(figure, unit="x")
        low, high = (figure["low"], figure["high"]) if figure else (None, None)
        return text if low is None or high is None or low <= 1 <= high else text + MARK

    return cell


MARK = "*"
MARKED = f"{MARK}: the 95-percent interval does not contain 1."
COLUMNS: dict[str, tuple[str, Column]] = {
    "output": ("output", format_output),
    "quality": ("quality (change)", format_quality),
    "tau": ("tau", _column("tau", format_figure)),
    "rate": ("tokens/s", _column("tokens_per_second", lambda figure: format_figure(figure, 1))),
    "speedup": ("speedup vs plain", _marked("speedup")),
    "speedup-hf": ("speedup vs HF generate", _marked("speedup_hf")),
    "overhead": ("overhead", _column("overhead", format_share)),
    "memory": ("peak memory", _column("peak_memory_bytes", format_memory)),
    "alpha": ("alpha by depth", _column("alpha", format_alpha)),
    "efficiency": ("draft efficiency", _column("draft_efficiency", format_share)),
    "cycles": ("cycles", _column("cycles", lambda count: NONE if count is None else str(count))),
}
"""Columns by their names in `specframe bench --columns`: heads and cells."""
USUAL = ("output", "quality", "tau", "rate", "speedup", "speedup-hf", "overhead", "memory")


def _lines(summary: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yields every value of every contestant: for all prompts, each task, and each set."""
    for entry in summary["contestants"]:
        groups = {"all": entry["overall"]}
        groups |= {f"{kind}: {name}": found for kind in ("tasks", "sets") for name, found in entry[kind].items()}
        for group, figures in groups.items():
            for name, figure in (figures or {}).items():
                if isinstance(figure, Mapping) and "value" in figure:
                    yield entry["name"], group, name, figure["value"], figure.get("low"), figure.get("high")
                elif isinstance(figure, int | float):
                    yield entry["name"], group, name, figure, None, None
                elif name == "alpha":
                    for depth, rate in enumerate(figure or (), 1):
                        yield entry["name"], group, f"alpha {depth}", rate, None, None


def print_table(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the contestants, a line each in every table; then tasks, then the caveats."""
    summary = printable_data(summary)
    tables = [_overall(summary), _output(summary)] + ([_by_task(summary)] if len(summary["tasks"]) > 1 else [])
    is_piped = console is None and not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = console or open_console()
    for table in tables:
        # A file or another program has no width to which values would have to be cut.
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
    """Returns a table of the agreement of the output, acceptance by depth, and memory."""
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
    """Returns an empty table of the contestants. Names of variants are long, and break where one change ends."""
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
