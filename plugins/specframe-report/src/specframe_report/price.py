"""Cost of a cycle in tokens of plain decoding, which explains a change of speedup with unchanged tau."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specframe_report.grid import Grid
from specframe_report.intervals import Array, median
from specframe_report.measures import CYCLE_PHASES

SAME_SIZE = 0.02
"""Largest relative difference of mean draft sizes for which forward passes count as equally expensive."""


@dataclass(frozen=True)
class Price:
    """The parts of a contestant's mean cycle, in units of one token of plain decoding, which is a whole cycle."""

    target: float
    """The target's forward pass over the draft."""
    drafter: float
    """The drafter's forward passes."""
    rest: float
    """Tree, law, verifier, commit, Python."""
    nodes: float
    """Number of nodes of a draft."""

    @property
    def cycle(self) -> float:
        """The total cost; tau divided by it is the speedup, without the prefill."""
        return self.target + self.drafter + self.rest


def price(ours: Grid, plain: Grid) -> Price | None:
    """Returns the mean cycle's cost, or None for contestants that do not report where their time goes.

    Runs are paired as for a speedup: by prompt, turn and repeat, with the median over repeats. The mean is over cycles.
    """
    forwards = ours.field("target_seconds"), ours.field("drafter_seconds")
    parts = [*forwards, _cycle_seconds(ours) - sum(forwards)]
    cycles = ours.field("cycles")
    unit = _cycle_seconds(plain) / _positive(plain.field("cycles"))
    typical = [median(part / _positive(cycles) / _positive(unit)) for part in parts]  # [P, T] each
    weight = median(cycles)
    finite = np.isfinite([*typical, weight]).all(0)
    if not finite.any():
        return None
    target, drafter, rest = (float(np.average(part[finite], weights=weight[finite])) for part in typical)
    nodes = float(np.nansum(ours.field("drafted")) / np.nansum(cycles))
    return Price(target, drafter, rest, nodes)


def forward_factor(old: Price | None, new: Price | None) -> float:
    """Returns the factor of a speedup's change due to the target's pass over drafts of equal size; 1 for other sizes.

    Such a pass has another relative cost because of the machine's load, or of the target's code: never because of the
    drafter, the tree or the verifier.
    """
    if old is None or new is None or abs(new.nodes - old.nodes) > SAME_SIZE * old.nodes:
        return 1.0
    return (new.cycle - new.target + old.target) / new.cycle


def format_change(old: Price, new: Price) -> str:
    """Formats the old and the new cost of a cycle: `a cycle costs 1.86 plain tokens (was 2.17): ...`."""
    names = {"the target's forward pass": "target", "the drafter's": "drafter", "the rest": "rest"}
    parts = (f"{words} {getattr(new, part):.2f} (was {getattr(old, part):.2f})" for words, part in names.items())
    return f"a cycle costs {new.cycle:.2f} plain tokens (was {old.cycle:.2f}): {', '.join(parts)}"


def _cycle_seconds(grid: Grid) -> Array:
    return np.asarray(sum(grid.field("phases", phase) for phase in CYCLE_PHASES))


def _positive(values: Array) -> Array:
    return np.where(values > 0, values, np.nan)
