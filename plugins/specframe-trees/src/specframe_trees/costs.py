"""Cost and expected tokens of a cycle by draft depth, as `specframe profile` measured them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path

from specframe import InputError
from specframe.plugin import rising


def cycle_costs(
    sizes: Sequence[int], *, draft_seconds: float, cycle_seconds: Mapping[int, float], block: int = 1
) -> list[float]:
    """Returns the seconds of a cycle with a draft of 0, 1, 2 ... levels.

    sizes[d] is the node count of a draft of d levels, including the root. `cycle_seconds` is the time of a cycle
    without the drafter's forward passes, by node count; `draft_seconds` the time of one drafter pass, which proposes
    `block` levels. Cycle times are interpolated between timed sizes; below the smallest timed size they are constant.
    If a larger size was timed as faster than a smaller one, the machine drifted: neighbours are averaged until times do
    not decrease. Raises InputError for more nodes than were timed.
    """
    timed = rising(sorted(cycle_seconds.items()))
    if not timed or sizes[-1] > timed[-1][0]:
        most = timed[-1][0] if timed else 0
        raise InputError(
            f"the deepest draft has {sizes[-1]} nodes, but no cycle with more than {most} was timed; "
            f"run `specframe profile` with --sizes up to {sizes[-1]}"
        )
    return [-(-depth // block) * draft_seconds + _between(timed, size) for depth, size in enumerate(sizes)]


@dataclass(frozen=True)
class Known:
    """Values for a shape from a file of `specframe profile`."""

    costs: list[float]
    """Seconds of a cycle with a draft of 0, 1, 2 ... levels."""
    rows: int
    """Number of rows decoded together."""
    context: float
    """Length of the longest of these rows in tokens, on average."""
    acceptance: list[float]
    """Share of cycles that continue to a node of each level, below first choices, to the measured depth."""
    reading: float = 0.0
    """Seconds in which the drafter reads one prompt token."""


def read_known(path: Path, widths: Sequence[int]) -> Known:
    """Reads costs and acceptance of drafts with `widths` children per node, level by level, from the file.

    Raises InputError if it cannot be read or its data do not suffice.
    """
    sizes = list(accumulate(accumulate(widths, mul), initial=1))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        batch, context = int(found.get("rows", 1)), float(found.get("context", 0))
        draft, block = float(found["draft_seconds"]), int(found["block"])
        reading = float(found.get("read_seconds", 0))
        cycle = {int(size): float(seconds) for size, seconds in found["cycle_seconds"].items()}
        shares = [[float(share) for share in row] for row in found["acceptance"]]
    except OSError as error:
        raise InputError(f"cannot read the costs in {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no costs: expected what `specframe profile --out` writes") from error
    costs = cycle_costs(sizes, draft_seconds=draft, cycle_seconds=cycle, block=max(block, 1))
    acceptance = [min(sum(row[:width]), 1.0) for row, width in zip(shares, widths, strict=False)]
    return Known(costs, batch, context, acceptance, reading)


def _between(timed: Sequence[tuple[int, float]], size: int) -> float:
    if size <= timed[0][0]:
        return timed[0][1]
    for (less, low), (more, high) in pairwise(timed):
        if size <= more:
            return low + (high - low) * (size - less) / (more - less)
    return timed[-1][1]
