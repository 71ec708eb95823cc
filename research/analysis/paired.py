"""Tau of a bench's recipes, and its change from one of them: ``python research/analysis/paired.py runs/bench/NAMES``.

The change is over the same prompts, redrawn for both, so that what makes a prompt hard cancels. Intervals are 95 %.
The folder is what `specframe bench --out` wrote; one repeat is enough, since tau depends on no time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specframe_report.grid import Axes, Grid
from specframe_report.intervals import Estimate, estimate, estimate_change
from specframe_report.measures import tau
from specframe_report.summary import check_schema, gather_runs

Row = tuple[str, Estimate, Estimate | None, list[float]]


def rows(results: Mapping[str, Any], against: str | None = None) -> Iterator[Row]:
    """Yields by recipe its tau, tau over that of `against` (default: the first), and acceptance by depth."""
    check_schema(results)
    runs = gather_runs(results)
    axes = Axes.of(results["runs"], [prompt["id"] for prompt in results["prompts"]])
    names = [entry["name"] for entry in results["contestants"] if entry["kind"] == "recipe" and entry["name"] in runs]
    grids = {name: Grid(runs[name], axes) for name in names}
    if not grids or (against is not None and against not in grids):
        raise SystemExit(f"--against names no recipe of the bench; there are {', '.join(grids) or 'none'}")
    first = against or next(iter(grids))
    for name, grid in grids.items():
        found, change = estimate(tau(grid)), estimate_change(tau(grids[first]), tau(grid))
        if found is not None and change is not None:
            yield name, found, None if name == first else change[2], acceptance(grid.runs)


def acceptance(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the share of cycles whose accepted path reached each depth."""
    cycles = sum(run["cycles"] for run in runs)
    return [sum(there) / cycles for there in zip_longest(*(run["reached"] for run in runs), fillvalue=0)]


def shown(row: Row) -> str:
    """The row of a table."""
    name, found, change, levels = row
    moved = "" if change is None else f"{change.value - 1:+.1%} [{_bounds(change, -1, '+.1%')}]"
    return f"| `{name}` | {found.value:.2f} [{_bounds(found)}] | {moved} | {' '.join(f'{a:.2f}' for a in levels)} |"


def _bounds(found: Estimate, off: float = 0.0, form: str = ".2f") -> str:
    if found.low is None or found.high is None:
        return "one prompt"
    return f"{found.low + off:{form}}, {found.high + off:{form}}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table in Markdown for each bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", type=Path, nargs="+", metavar="FOLDER", help="what specframe bench --out wrote")
    parser.add_argument("--against", metavar="NAME", help="the contestant that others change from (default: the first)")
    options = parser.parse_args(arguments)
    for folder in options.benches:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        table = [shown(row) for row in rows(results, options.against)]
        print(f"{folder}: {len(results['prompts'])} prompts, temperature {results['settings']['temperature']}\n")
        print("| recipe | tau | change, paired by prompt | accepted to depth 1, 2, .. |\n|---|---|---|---|")
        print("\n".join(table) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
