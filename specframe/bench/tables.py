"""A bench's figures as tables for papers and programs: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specframe.bench.format import (
    NONE,
    format_figure,
    format_literal,
    format_memory,
    format_output,
    format_quality,
    format_share,
)
from specframe.kernel.errors import needs_extra

with needs_extra("bench", "specframe bench"):
    from tabulate import tabulate

FORMATS: dict[str, tuple[str, Callable[[str], str]]] = {
    "table.md": ("github", format_literal),
    "table.tex": ("latex_booktabs", str),
}
"""Files of the contestants side by side: the format of the package tabulate, which escapes LaTeX, and names in it."""
FIGURES = "figures.csv"
"""The file of all figures."""
COLUMNS = ("contestant", "prompts", "figure", "value", "low", "high")


def write_tables(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the tables into the folder, and returns their files. Raises OSError where that fails."""
    files = []
    for name, (form, literal) in FORMATS.items():
        files.append(folder / name)
        head, rows = overall_table(summary, literal)
        text = tabulate(rows, head, tablefmt=form, disable_numparse=True)
        files[-1].write_text(text + "\n", encoding="utf-8")
    files.append(folder / FIGURES)
    with files[-1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(_lines(summary))
    return files


def overall_table(summary: Mapping[str, Any], literal: Callable[[str], str] = str) -> tuple[list[str], list[list[str]]]:
    """The contestants side by side, names made `literal`: the columns' names, and a row of texts each."""
    there = [entry for entry in summary["contestants"] if entry["overall"] is not None]
    return side_by_side(there, lambda entry: literal(str(entry["name"])))


def side_by_side(
    entries: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]
) -> tuple[list[str], list[list[str]]]:
    """The columns' names, and a row of texts for each contestant, called by `name`."""
    speedups = ["speedup vs plain", "speedup vs HF generate"]
    qualities = [format_quality(entry) for entry in entries]
    quality = ["quality (change)"] if set(qualities) - {NONE} else []
    head = ["contestant", "output", *quality, "tau", "tokens/s", *speedups, "overhead", "peak memory"]
    rows = []
    for entry, answers in zip(entries, qualities, strict=True):
        figures = entry["overall"]
        rows.append([
            name(entry),
            format_output(entry),
            *([answers] if quality else []),
            format_figure(figures.get("tau")),
            format_figure(figures["tokens_per_second"], 1),
            format_figure(figures.get("speedup"), unit="x"),
            format_figure(figures.get("speedup_hf"), unit="x"),
            format_share(figures.get("overhead")),
            format_memory(figures["peak_memory_bytes"]),
        ])  # fmt: skip
    return head, rows


def _lines(summary: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yields every figure of every contestant: of all prompts, of each task, of each set."""
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
