"""Bootstrap over prompts and seeds: the measured points, and resampled ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specframe_scaling.points import Array, Results

LOW, HIGH = 2.5, 97.5
"""Percentiles of an interval."""


@dataclass(frozen=True)
class Sums:
    """Counts of N points in R resamples of prompts and seeds; the first is the measured one."""

    tokens: Array  # [N]
    parameters: Array  # [N]
    cycles: Array  # [R, N]
    reached: Array  # [R, N, D] cycles that reached depth 1, 2, ...
    weights: Array  # [R, N] how often a point's seed was chosen

    @property
    def tau(self) -> Array:
        """[R, N] tokens per cycle."""
        found: Array = 1 + self.reached.sum(-1) / np.maximum(self.cycles, 1e-9)
        return found

    def only(self, chosen: Array) -> Sums:
        """Returns the points that are chosen, [N] bool."""
        return Sums(
            self.tokens[chosen],
            self.parameters[chosen],
            self.cycles[:, chosen],
            self.reached[:, chosen],
            self.weights[:, chosen],
        )


def resample(results: Results, count: int = 200, seed: int = 0) -> Sums:
    """Returns the sums of the results, and of `count` bootstrap resamples.

    All points have the same prompts, so one choice of prompts applies to all; seeds are chosen for each size, because
    the points of a seed share one run. Of n, n - 1 are drawn and weighted by n / (n - 1) (Rao and Wu 1988): with two
    seeds an ordinary bootstrap would give half of their variance.
    """
    dice = np.random.default_rng(seed)
    prompts = results.cycles.shape[1]
    chosen = np.ones((count + 1, prompts))
    for row in chosen[1:]:
        row[:] = _drawn(dice, prompts)
    weights = np.ones((count + 1, len(results.points)))
    for size in results.sizes():
        members = [place for place, point in enumerate(results.points) if point.size == size]
        seeds = sorted({results.points[place].seed for place in members})
        of = np.array([seeds.index(results.points[place].seed) for place in members])
        for row in weights[1:]:
            row[members] = _drawn(dice, len(seeds))[of]
    return Sums(
        results.tokens,
        results.parameters,
        np.einsum("rp,np->rn", chosen, results.cycles),
        np.einsum("rp,npd->rnd", chosen, results.reached),
        weights,
    )


def interval(values: Array) -> tuple[float, float]:
    """Returns the ends of the 95 % interval of values over resamples, [R], the first of which was measured."""
    low, high = np.percentile(values[1:] if len(values) > 1 else values, [LOW, HIGH])
    return float(low), float(high)


def _drawn(dice: np.random.Generator, count: int) -> Array:
    """Returns the weight of each of `count` items after a draw."""
    if count == 1:
        return np.ones(1)
    drawn = np.bincount(dice.integers(count, size=count - 1), minlength=count)
    return drawn.astype(np.float64) * (count / (count - 1))
