"""Quality of answers by a check, and its paired difference from plain decoding's."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from specframe_report.grid import Grid
from specframe_report.intervals import Array, Estimate, student

FEWEST = 10
"""Number of checked prompts below which there is no quality: the interval of a share is then as wide as its range."""
PSEUDO = 2.0
"""Observations that are added to pairs, half a one of each kind: intervals keep a width where no pair differs."""


def measure_quality(grid: Grid, plain: Grid | None) -> dict[str, Any]:
    """`quality`, the mean over prompts, and `quality_change`, its difference from plain decoding's.

    A prompt's quality is its mean over repeats. Figures are {value, low, high}; None with fewer than ten prompts that
    were checked, or for a difference from nothing.
    """
    ours = _by_prompt(grid)
    if np.isfinite(ours).sum() < FEWEST:
        return {"quality": None, "quality_change": None}
    theirs = np.full_like(ours, np.nan) if plain is None else _by_prompt(plain)
    value, change = mean_interval(ours), paired_interval(ours - theirs)
    return {"quality": value and value.as_dict(), "quality_change": change and change.as_dict()}


def mean_interval(values: Array) -> Estimate | None:
    """Mean of shares between 0 and 1, NaN left out, with Agresti and Coull's interval: two wins and two losses more."""
    return _within(values, np.array([0.0, 1.0]), (0.0, 1.0), 2 * PSEUDO)


def paired_interval(differences: Array) -> Estimate | None:
    """Mean of differences between -1 and 1, NaN left out, with the interval of Agresti and Min 2005.

    Half a pair is added of each kind (won, lost, both right, both wrong), so that no pair that differs is not taken
    for proof that none would.
    """
    return _within(differences, np.array([-1.0, 0.0, 0.0, 1.0]), (-1.0, 1.0), PSEUDO)


def _within(values: Array, added: Array, ends: tuple[float, float], weight: float) -> Estimate | None:
    """The mean, with the interval of the values and the `added` ones, which weigh `weight` together, cut to `ends`."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    if len(finite) < 2:
        return Estimate(float(finite.mean()))
    count = len(finite) + weight
    middle = (finite.sum() + weight * added.mean()) / count
    variance = ((finite - middle) ** 2).sum() + weight * ((added - middle) ** 2).mean()
    half = student(len(finite) - 1) * sqrt(variance / count / count)
    value = float(finite.mean())
    return Estimate(
        value, float(max(min(middle - half, value), ends[0])), float(min(max(middle + half, value), ends[1]))
    )


def _by_prompt(grid: Grid) -> Array:
    """Each prompt's quality, [P]; NaN where nothing checked it."""
    cells = grid.field("quality").reshape(len(grid.axes.prompts), -1)
    finite = np.isfinite(cells)
    counts = finite.sum(1)
    totals = np.where(finite, cells, 0.0).sum(1)
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
