"""Quality of answers by a check, and its paired difference from plain decoding's."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from specframe_report.grid import Grid
from specframe_report.intervals import Array, Estimate, student

FEWEST = 10
"""Minimum number of checked prompts: with fewer, the interval of a share is as wide as its range."""
PSEUDO = 2.0
"""Observations added to pairs, half a one of each kind, so that intervals keep a width if no pair differs."""


def measure_quality(grid: Grid, plain: Grid | None) -> dict[str, Any]:
    """Returns `quality`, the mean over prompts, and `quality_change`, its difference from plain decoding's.

    A prompt's quality is its mean over repeats. Values are {value, low, high}; None with fewer than ten checked
    prompts, or for a difference without a baseline.
    """
    ours = _by_prompt(grid)
    if np.isfinite(ours).sum() < FEWEST:
        return {"quality": None, "quality_change": None}
    theirs = np.full_like(ours, np.nan) if plain is None else _by_prompt(plain)
    value, change = mean_interval(ours), paired_interval(ours - theirs)
    return {"quality": value and value.as_dict(), "quality_change": change and change.as_dict()}


def mean_interval(values: Array) -> Estimate | None:
    """Returns the mean of shares between 0 and 1 without NaN, with Agresti and Coull's interval (two of each added)."""
    return _within(values, np.array([0.0, 1.0]), (0.0, 1.0), 2 * PSEUDO)


def paired_interval(differences: Array) -> Estimate | None:
    """Returns the mean of differences between -1 and 1 without NaN, with the interval of Agresti and Min 2005.

    Half a pair of each kind is added (won, lost, both right, both wrong), so that the absence of differing pairs is not
    taken as proof that none exist.
    """
    return _within(differences, np.array([-1.0, 0.0, 0.0, 1.0]), (-1.0, 1.0), PSEUDO)


def _within(values: Array, added: Array, ends: tuple[float, float], weight: float) -> Estimate | None:
    """Returns the mean, with the interval of the values and the `added` ones of total `weight`, clipped to `ends`."""
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
    """Returns each prompt's quality, [P]; NaN if it was not checked."""
    cells = grid.field("quality").reshape(len(grid.axes.prompts), -1)
    finite = np.isfinite(cells)
    counts = finite.sum(1)
    totals = np.where(finite, cells, 0.0).sum(1)
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
