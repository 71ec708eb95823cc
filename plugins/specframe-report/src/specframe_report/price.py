"""Cost of a cycle in tokens of plain decoding: explains a change of speedup where tau did not change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specframe_report.grid import Grid
from specframe_report.intervals import Array, median
from specframe_report.measures import CYCLE_PHASES

SAME_SIZE = 0.02
"""Largest relative difference between the mean sizes of two drafts whose forwards count as equally expensive."""


@dataclass(frozen=True)
class Price:
    """The parts of a contestant's mean cycle; one token of plain decoding, its whole cycle, is 1."""

    target: float
    """The target's forward over the draft."""
    drafter: float
    """The drafter's forwards."""
    rest: float
    """Tree, law, verifier, commit, Python."""
    nodes: float
    """Number of nodes of a draft."""

    @property
    def cycle(self) -> float:
        """The whole; tau over it is the speedup, but for the prefill."""
        return self.target + self.drafter + self.rest


def price(ours: Grid, plain: Grid) -> Price | None:
    """The mean cycle's price, or None for contestants that do not report where their time goes.

    Runs are paired as those of a speedup are: by prompt, turn and repeat, the median over repeats. The mean
    is over cycles.
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
    """The factor of a speedup's change that is the target's forward over drafts of one size; 1 where they are not.

    Such a forward takes another share of a plain token because the machine's load is another, or the target's
    code: never because of the drafter, the tree or the verifier.
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
