"""How sure a figure is: a two-way bootstrap over prompts and over repeats, on the log scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SAMPLES = 500
CONFIDENCE = 0.95
SMALL = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447)
"""Student's two-sided 95 % points for 1, 2 ... 6 degrees of freedom."""


@dataclass(frozen=True)
class Measure:
    """A figure that is a ratio of two totals over prompts: all of the bench's positive figures are.

    `totals(picks)` gives both, per prompt, [S, P] each, had the repeats picks [S, P, R] been run.
    """

    totals: Callable[[NDArray[np.int64]], tuple[Array, Array]]
    prompts: int
    repeats: int
    timed: bool = True
    """Whether the machine's mood at each repeat goes in: then one repeat cannot tell how sure it is."""

    def parts(self) -> tuple[Array, Array]:
        """Both totals per prompt, [P] each, as measured."""
        above, below = self.totals(np.broadcast_to(np.arange(self.repeats), (1, self.prompts, self.repeats)))
        return above[0], below[0]


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; no bounds where there is too little to tell them from."""

    value: float
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Luck:
    """One independent source of a figure's uncertainty: the variance of its log, from how many units."""

    variance: float
    units: int


def estimate(measure: Measure, seed: int = 0) -> Estimate | None:
    """The figure with its interval; None where no prompt has it."""
    above, below = measure.parts()
    kept = (above > 0) & (below > 0)
    if not kept.any():
        return None
    value = log(above[kept].sum() / below[kept].sum())
    return bound(value, [luck_of_prompts([measure], kept, seed), *luck_of_repeats(measure, kept, seed)])


def estimate_change(old: Measure, new: Measure, seed: int = 0) -> tuple[Estimate, Estimate, Estimate] | None:
    """Old, new, and new / old with its interval, of two measures over the same prompts in the same order.

    Prompts are resampled together, so that what makes one hard cancels; each side's repeats are resampled
    as blocks, all prompts of a repeat at once, so that a drift of the machine does not pass for evidence.
    None where no prompt has both.
    """
    sides = [old.parts(), new.parts()]
    kept = np.all([(above > 0) & (below > 0) for above, below in sides], axis=0)
    if not kept.any():
        return None
    before, after = (log(above[kept].sum() / below[kept].sum()) for above, below in sides)
    lucks = [luck_of_prompts([old, new], kept, seed)]
    for side in (old, new):
        lucks += luck_of_repeats(side, kept, seed)
    return Estimate(exp(before)), Estimate(exp(after)), bound(after - before, lucks)


def luck_of_prompts(measures: Sequence[Measure], kept: NDArray[np.bool_], seed: int) -> Luck:
    """What other prompts of the same kind would change in a figure, or in the last over the first.

    The noise of single runs is in it: it makes prompts differ.
    """
    prompts = int(kept.sum())
    draws = np.random.default_rng([seed, 0]).multinomial(prompts, [1 / prompts] * prompts, size=SAMPLES)
    logs = np.zeros(SAMPLES)
    for measure in measures:
        above, below = (part[kept] for part in measure.parts())
        logs = np.log((draws @ above) / (draws @ below)) - logs
    return Luck(float(np.var(logs)), prompts)


def luck_of_repeats(measure: Measure, kept: NDArray[np.bool_], seed: int) -> list[Luck]:
    """What other moments of the same machine would change in all prompts at once; nothing for counts.

    Repeats drawn as blocks, the same for all prompts, shift the typical prompt by the moods of the machine
    and by the noise of single runs; drawn for each prompt anew, by the noise alone, which the prompts' luck
    already holds. The moods are what is left of the first.
    """
    if not measure.timed:
        return []
    repeats, random = measure.repeats, np.random.default_rng([seed, 1])
    blocks = random.integers(repeats, size=(SAMPLES, 1, repeats))
    anew = random.integers(repeats, size=(SAMPLES, len(kept), repeats))
    both = []
    for picks in (np.broadcast_to(blocks, anew.shape), anew):
        above, below = (part[:, kept] for part in measure.totals(picks))
        there = (above > 0) & (below > 0)  # runs may be missing from the repeats that came up
        logs = np.log(np.divide(above, below, out=np.full_like(above, np.nan), where=there))  # [S, P]
        shifts = median(logs - median(logs.T)[None])  # the typical prompt's: a hiccup in one prompt is no mood
        both.append(float(np.nanvar(shifts)))
    return [Luck(max(both[0] - both[1], 0.0), repeats)]


def bound(value: float, lucks: Sequence[Luck]) -> Estimate:
    """exp(value) with the interval that independent sources of luck leave around it.

    The bootstrap of n units underrates their variance by (n - 1) / n, and few units want Student's wider
    quantiles, at Satterthwaite's degrees of freedom: percentiles alone would promise 95 % and hold far less
    at three repeats. One unit tells nothing about its kind: then there are no bounds.
    """
    if min(luck.units for luck in lucks) < 2:
        return Estimate(exp(value))
    variances = [luck.variance * luck.units / (luck.units - 1) for luck in lucks]
    total = sum(variances)
    if not total:
        return Estimate(exp(value), exp(value), exp(value))
    freedom = total**2 / sum(v**2 / (luck.units - 1) for v, luck in zip(variances, lucks, strict=True))
    half = student(freedom) * sqrt(total)
    return Estimate(exp(value), exp(value - half), exp(value + half))


def student(freedom: float) -> float:
    """The two-sided 95 % point of Student's law: a table for few degrees of freedom, then Fisher's expansion."""
    if freedom <= len(SMALL):
        return float(np.exp(np.interp(freedom, range(1, len(SMALL) + 1), np.log(SMALL))))
    z, n = 1.959964, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def median(values: Array) -> Array:
    """Medians along the last axis of what is there, NaN standing for what is not: [..., R] -> [...]."""
    ordered = np.sort(values, -1)  # NaN last
    count = np.isfinite(ordered).sum(-1, keepdims=True)
    lower = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, -1)
    upper = np.take_along_axis(ordered, count // 2, -1)
    return ((lower + upper) / 2)[..., 0]
