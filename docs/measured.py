"""The bench's figures within pages that are written by hand: each block names its recipes, the results fill it in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from method_table import RESULTS, read_measured, read_results

from specframe.bench.report.phrases import format_figure, format_share

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/methods/*.md", "docs/howto/trees.md")
BLOCK = re.compile(r"(<!-- bench(?: (\S+))?\n(.*?)-->\n).*?(<!-- /bench -->)", re.DOTALL)
PAPERS = re.compile(r"(<!-- papers(?: (\S+))?\n(.*?)-->\n).*?(<!-- /papers -->)", re.DOTALL)
TARGETS = {
    None: "the embedded model of 7M parameters",
    "smollm2": "SmolLM2-135M-Instruct",
    "smollm2-avx512": "SmolLM2-135M-Instruct",
}
"""What a bench of a folder decoded."""
HEAD = "| recipe | tau | speedup against `generate` | against our plain decoding | overhead |\n|---|---|---|---|---|"


def render_blocks(results: Path = RESULTS) -> Iterator[tuple[Path, str]]:
    """Every page with a block of the bench or of papers, and its text with all blocks filled in.

    A block begins with a comment that holds a YAML mapping of recipes to a note on each; one of another bench
    names its folder, next to these results. Raises KeyError for a recipe that the results don't have.
    """

    @cache
    def measured(folder: str) -> Mapping[str, Any]:
        return read_measured(read_results(results.parent / folder / results.name))

    for pattern in PAGES:
        for page in sorted(ROOT.glob(pattern)):
            text = page.read_text(encoding="utf-8")
            if BLOCK.search(text) or PAPERS.search(text):
                filled = BLOCK.sub(lambda found: _fill(found, measured), text)
                yield page, PAPERS.sub(lambda found: _compare(found, measured), filled)


def _compare(block: re.Match[str], measured: Callable[[str], Mapping[str, Any]]) -> str:
    """A recipe's figures here in the row above what its paper has: the comment maps the one to the other."""
    opening, folder, named, closing = block.groups()
    rows = ["| | tau | times `generate` | times plain decoding |\n|---|---|---|---|"]
    for recipe, paper in yaml.safe_load(named).items():
        figures = measured(folder or "")[recipe]["overall"]
        tau, speedup, own = (format_figure(figures[name]) for name in ("tau", "speedup_hf", "speedup"))
        where, _, gain = paper.partition(": ")
        rows.append(f"| `{recipe}.yaml`, {TARGETS[folder]}, two cores | {tau} | {speedup} | {own} |")
        rows.append(f"| the paper: {where} | | | {gain} |")
    return "\n".join([opening, *rows, "", closing])


def _fill(block: re.Match[str], measured: Callable[[str], Mapping[str, Any]]) -> str:
    opening, folder, named, closing = block.groups()
    found = measured(folder or "")
    rows = [_row(recipe, note, found[recipe]["overall"]) for recipe, note in yaml.safe_load(named).items()]
    return "\n".join([f"{opening}\n{HEAD}", *rows, f"\n{closing}"])


def _row(recipe: str, note: str | None, figures: Mapping[str, Any]) -> str:
    name = note if recipe == "plain" and note else f"`{recipe}.yaml`" + (f": {note}" if note else "")
    shown = [format_figure(figures["tau"]), format_figure(figures["speedup_hf"]), format_figure(figures["speedup"])]
    return "| " + " | ".join([name, *shown, format_share(figures["overhead"])]) + " |"
