"""Common parts of the analyses: command line, recipes, the bench's own prompts, intervals, the file of numbers, tables.

Tables are written in Markdown, and filled in between their page's own marks.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from specframe import Pipeline, load
from specframe.bench.contest.datasets import SHIPPED, read_questions, spread
from specframe.files.provenance import write_json

RECIPES = Path(__file__).resolve().parent.parent.parent / "recipes" / "small"
Row = TypeVar("Row")


def open_recipe(name: str, overrides: Sequence[str] = ()) -> Pipeline:
    """The recipe, loaded."""
    return load(RECIPES / f"{name}.yaml", overrides=list(overrides))


def prompts(pipeline: Pipeline, limit: int) -> list[list[int]]:
    """The first turns of the bench's own prompts, spread over their tasks."""
    return [pipeline.encode(question.turns[0]) for question in spread(read_questions([SHIPPED]), 0)[:limit]]


def interval(rows: Sequence[Row], figure: Callable[[Sequence[Row]], float], times: int = 500) -> list[float]:
    """The figure of what was measured, prompt by prompt, with its 95 % interval over prompts: value, low, high."""
    chance = random.Random(0)
    found = sorted(figure(chance.choices(rows, k=len(rows))) for _ in range(times))
    return [figure(rows), found[times // 40], found[-times // 40 - 1]]


class Rounds:
    """Results of several contestants in turns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}

    def add(self, name: str, figures: dict[str, Any]) -> None:
        """Notes one round of a contestant."""
        self._rows[name].append(figures)

    def summary(self) -> dict[str, Any]:
        """Returns by figure and contestant the median and every round; the load average's range.

        `compared` has the ratios of two contestants' figures in one round: their median, with its 95 % interval.
        """
        loads = [row["load_average"] for rows in self._rows.values() for row in rows]
        found: dict[str, Any] = {"load": [min(loads), max(loads)]}
        for figure in ("tokens_per_second", "tokens_per_cpu_second"):
            every = {name: [row[figure] for row in rows] for name, rows in self._rows.items()}
            ratios = {
                f"{one} / {other}": interval([a / b for a, b in zip(every[one], every[other], strict=True)], median)
                for one, other in permutations(every, 2)
            }
            found[figure] = {name: median(row) for name, row in every.items()} | {"rounds": every, "compared": ratios}
        return found


def keep(path: Path, numbers: dict[str, Any]) -> dict[str, Any]:
    """All numbers of the file, after these were written into it; what was measured before stays."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_json(path, known | numbers)
    return known | numbers


def command(description: str | None, tokens: int) -> argparse.ArgumentParser:
    """The command line of an analysis that decodes prompts; `tokens` are new ones, where none are asked for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=24, help="prompts, at most (default: 24, all there are)")
    parser.add_argument("--tokens", type=int, default=tokens, help=f"new tokens per prompt (default: {tokens})")
    return parser


def choose(
    parser: argparse.ArgumentParser, analyses: Sequence[str], arguments: Sequence[str] | None
) -> argparse.Namespace:
    """The options, `analyses` among them: those that were asked for, or all. An unknown one is refused."""
    parser.add_argument("analyses", nargs="*", metavar="ANALYSIS", help=f"of {', '.join(analyses)} (default: all)")
    options = parser.parse_args(arguments)
    if unknown := set(options.analyses) - set(analyses):
        parser.error(f"there is no analysis {', '.join(sorted(unknown))}; there are {', '.join(analyses)}")
    options.analyses = options.analyses or list(analyses)
    return options


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
