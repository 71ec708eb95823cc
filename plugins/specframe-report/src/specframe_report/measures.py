"""The bench's measures, defined once: each is a ratio of two totals over prompts.

Timing noise is removed where it arises: the median over the repeats of a prompt's turn is taken first, then the totals.
A hiccup of the machine thus affects one repeat of one prompt, not the result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specframe_report.grid import Grid
from specframe_report.intervals import Array, Measure, median

CYCLE_PHASES = ("draft", "score", "verify", "commit", "other")
PHASES = ("prefill", *CYCLE_PHASES)


def rate(grid: Grid) -> Measure:
    """Tokens per second: the tokens of all prompts over their total time."""
    cost, tokens = cost_per_token(grid), grid.field("tokens")

    def totals(picks: NDArray[np.int64]) -> tuple[Array, Array]:
        typical = median(redraw(cost, picks))  # [P, T, S]
        weights = np.where(np.isnan(typical), np.nan, median(tokens)[..., None])
        return _sum(weights), _sum(weights * typical)

    return Measure(totals, *grid.axes.size)


def speedup(ours: Grid, baseline: Grid) -> Measure:
    """Measures the speedup: how many times sooner the contestant would have generated the baseline's tokens.

    Each run is paired with the baseline's run of the same prompt, turn and repeat, so drift of the machine cancels. The
    ratio is of times per token, so texts of unequal length can be compared. Time in which other processes had the
    processor is excluded from both. A prompt's time for the contestant is the baseline's time over the median ratio,
    and the speedup is the ratio of the total times.
    """
    tokens = baseline.field("tokens")
    ratio = paired_ratio(ours, baseline)
    theirs = np.where(np.isnan(ratio), np.nan, own_cost(baseline))

    def totals(picks: NDArray[np.int64]) -> tuple[Array, Array]:
        typical = median(redraw(ratio, picks))  # [P, T, S]
        time = median(tokens)[..., None] * median(redraw(theirs, picks))
        return _sum(time), _sum(time / typical)

    return Measure(totals, *ours.axes.size)


def mean_time(grid: Grid, *path: str | int) -> Measure:
    """A duration in seconds: the mean over prompts and turns of its median over repeats."""
    seconds = grid.field(*path)

    def totals(picks: NDArray[np.int64]) -> tuple[Array, Array]:
        typical = median(redraw(seconds, picks))  # [P, T, S]
        return _sum(typical), _sum(np.where(np.isnan(typical), np.nan, 1.0))

    return Measure(totals, *grid.axes.size)


def tau(grid: Grid) -> Measure:
    """Tokens committed per cycle, the bonus included."""
    cycles = grid.field("cycles")
    return pooled(cycles + grid.field("accepted"), cycles)


def overhead_factor(grid: Grid) -> Measure:
    """1 + overhead: the time of the cycles over that of the forward passes in them."""
    cycles = sum(grid.field("phases", phase) for phase in CYCLE_PHASES)
    return pooled(np.asarray(cycles), grid.field("target_seconds") + grid.field("drafter_seconds"), timed=True)


def pooled(numerator: Array, denominator: Array, timed: bool = False) -> Measure:
    """Returns the ratio of two counts [P, T, R], each summed over everything."""
    finite = np.isfinite(numerator) & np.isfinite(denominator)
    numerator, denominator = np.where(finite, numerator, 0.0), np.where(finite, denominator, 0.0)

    def totals(picks: NDArray[np.int64]) -> tuple[Array, Array]:
        return _sum(redraw(numerator, picks).sum(-1)), _sum(redraw(denominator, picks).sum(-1))

    return Measure(totals, len(numerator), numerator.shape[-1], timed)


def cost_per_token(grid: Grid) -> Array:
    """Returns the seconds per new token of each run, [P, T, R]."""
    seconds, tokens = grid.field("seconds"), grid.field("tokens")
    return np.where(seconds > 0, seconds, np.nan) / np.where(tokens > 0, tokens, np.nan)


def own_cost(grid: Grid) -> Array:
    """Returns the seconds per new token of each run, [P, T, R], without time that other processes used."""
    left = grid.field("seconds") - np.nan_to_num(grid.field("waited_seconds"))
    return np.where(left > 0, left, np.nan) / np.where(grid.field("tokens") > 0, grid.field("tokens"), np.nan)


def paired_ratio(ours: Grid, baseline: Grid) -> Array:
    """Returns the baseline's own cost over the contestant's, run by run, [P, T, R]."""
    return own_cost(baseline) / own_cost(ours)


def redraw(cells: Array, picks: NDArray[np.int64]) -> Array:
    """Replaces the repeats of cells [P, T, R] by picks [S, P, R] -> [P, T, S, R]."""
    return np.take_along_axis(cells[:, :, None], picks.swapaxes(0, 1)[:, None], -1)


def _sum(cells: Array) -> Array:
    """Returns totals per prompt without missing cells: [P, T, S] -> [S, P]."""
    return np.nansum(cells, 1).T
