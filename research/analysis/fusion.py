"""Tau of trained drafters on held-out prompts: ``python research/analysis/fusion.py FILE FOLDER FOLDER ...``.

FILE holds prompts, such as the 24 of docs/howto/bench.md; each folder holds a drafter for the recipe small/eagle2. The
change is to the first folder's, over the same prompts redrawn for both, so that what makes a prompt hard cancels.
Intervals are 95 %, by 10,000 bootstrap draws of the prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import specframe
from specframe import read_prompts

RECIPE = Path(__file__).parents[2] / "recipes" / "small" / "eagle2.yaml"
DRAWS = 10_000


def redrawn(cycles: Tensor, tokens: Tensor, seed: int = 0) -> Tensor:
    """Tau of bootstrap draws of the prompts, [DRAWS], given each prompt's cycles and tokens."""
    rows = torch.randint(len(cycles), (DRAWS, len(cycles)), generator=torch.Generator().manual_seed(seed))
    return tokens[rows].sum(1) / cycles[rows].sum(1)


def interval(values: Tensor) -> tuple[float, float]:
    """The middle 95 % of the values."""
    low, high = values.quantile(torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return low, high


def change_of(draws: Tensor, first: Tensor) -> str:
    """The median change of tau since the first one's draws, with its interval; nothing for the first itself."""
    if draws is first:
        return ""
    change = draws / first - 1
    low, high = interval(change)
    return f"{change.median():+.1%} [{low:+.1%}, {high:+.1%}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args(arguments)
    prompts = read_prompts(options.prompts)
    first: Tensor | None = None
    for folder in options.folders:
        overrides = [f"drafter.weights={folder}", "target.dtype=float32", "sampling.max_new_tokens=64", "run.batch=8"]
        found = specframe.measure_tau(specframe.load(RECIPE, overrides=overrides), prompts)
        draws = redrawn(found.cycles, found.cycles + found.reached.sum(1))
        low, high = interval(draws)
        first = draws if first is None else first
        print(f"| `{folder}` | {found.tau:.2f} [{low:.2f}, {high:.2f}] | {change_of(draws, first)} |", flush=True)


if __name__ == "__main__":
    main()
