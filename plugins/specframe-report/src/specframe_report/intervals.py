"""Uncertainty of a value: the variance due to its prompts and to the machine's load, on the log scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, exp, log, log2, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # Student's quantiles, without the rest of scipy.stats

Array = NDArray[np.float64]

SAMPLES = 500
CONFIDENCE = 0.95
FREEDOM, STRETCH = 4, 6
"""Degrees of freedom that an estimate of load variation should have, and the number of prompts that gives one."""
FEWEST_PROMPTS = 3
"""Minimum number of prompts: two have one difference, for which Student's quantile of 12.7 gives no useful bound."""
LEAST_FREEDOM = 2.0
"""Degrees of freedom below which all sources together give no interval."""


@dataclass(frozen=True)
class Measure:
    """A ratio of two totals over prompts; all positive values of the bench are such ratios.

    `totals(picks)` returns both totals, per prompt, [S, P] each, for the repeats picks [S, P, R].
    """

    totals: Callable[[NDArray[np.int64]], tuple[Array, Array]]
    prompts: int
    repeats: int
    timed: bool = True
    """True if it depends on the machine's load at each repeat; one repeat is then too few for an interval."""

    def parts(self) -> tuple[Array, Array]:
        """Returns both totals per prompt, [P] each, as measured."""
        numerator, denominator = self.totals(np.broadcast_to(np.arange(self.repeats), (1, self.prompts, self.repeats)))
        return numerator[0], denominator[0]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; without bounds if there are too few data to estimate them."""

    value: float
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Returns plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Variance:
    """One independent source of uncertainty: the variance of a value's log, and its degrees of freedom."""

    variance: float
    freedom: int
    """Degrees of freedom; 0 if nothing is known."""


def estimate(measure: Measure, seed: int = 0) -> Estimate | None:
    """Returns the value with its interval; None if no prompt has it."""
    numerator, denominator = measure.parts()
    valid = (numerator > 0) & (denominator > 0)
    if not valid.any():
        return None
    value = log(numerator[valid].sum() / denominator[valid].sum())
    moments = variance_of_moment(measure, valid, 2.0)  # our moment and another one
    return bound(value, [variance_of_prompts([measure], valid, seed), *moments])


def estimate_change(
    old: Measure, new: Measure, seed: int = 0, apart: float = 1.0
) -> tuple[Estimate, Estimate, Estimate] | None:
    """Returns old, new, and new / old with its interval, of two measures over the same prompts in the same order.

    `apart` is the distance of the two benches in time, in lengths of a bench: the longer, the more a machine's load may
    have changed.

    Prompts are resampled together, so that their difficulty cancels. Each side has its own variance of the moment, so
    that a drift of the machine does not count as evidence. None if no prompt has both values.
    """
    sides = [old.parts(), new.parts()]
    valid = np.all([(numerator > 0) & (denominator > 0) for numerator, denominator in sides], axis=0)
    if not valid.any():
        return None
    before, after = (log(numerator[valid].sum() / denominator[valid].sum()) for numerator, denominator in sides)
    sources = [variance_of_prompts([old, new], valid, seed)]
    for side in (old, new):
        sources += variance_of_moment(side, valid, 1 + log2(max(apart, 1.0)) / 2)
    return Estimate(exp(before)), Estimate(exp(after)), bound(after - before, sources)


def variance_of_prompts(measures: Sequence[Measure], valid: NDArray[np.bool_], seed: int) -> Variance:
    """Estimates how a value, or the ratio of the last to the first, would change with other prompts of this kind.

    The noise of single runs is included, because it makes prompts differ.
    """
    prompts = int(valid.sum())
    draws = np.random.default_rng([seed, 0]).multinomial(prompts, [1 / prompts] * prompts, size=SAMPLES)
    logs = np.zeros(SAMPLES)
    for measure in measures:
        numerator, denominator = (part[valid] for part in measure.parts())
        logs = np.log((draws @ numerator) / (draws @ denominator)) - logs
    correction = prompts / max(prompts - 1, 1)  # the bootstrap of n units underestimates their variance by (n - 1) / n
    return Variance(float(np.var(logs)) * correction, prompts - 1)


def variance_of_moment(measure: Measure, valid: NDArray[np.bool_], times: float) -> list[Variance]:
    """Returns the variance, `times` times, that the machine's load adds to all prompts at once; none for counts.

    It is the spread of the typical prompt's shift from repeat to repeat; few repeats of many prompts are divided into
    stretches of neighbours to improve the estimate. A bench cannot observe load variation slower than itself, so an
    assumption is needed: 1/f noise, which has no time scale. Two consecutive benches then differ as two moments do:
    more repeats improve the estimate of that spread but do not average it away, and the variance of a difference grows
    with the logarithm of the distance.
    """
    if not measure.timed:
        return []
    prompts, repeats = len(valid), measure.repeats
    single = np.broadcast_to(np.arange(repeats)[:, None, None], (repeats, prompts, repeats))
    numerator, denominator = (part[:, valid] for part in measure.totals(single))  # [R, P]
    present = (numerator > 0) & (denominator > 0)  # runs may be missing
    logs = np.log(np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=present))
    shifts = logs - np.nanmean(logs, 0)
    squares, freedom = 0.0, 0
    wanted = min(ceil(FREEDOM / max(repeats - 1, 1)), shifts.shape[1] // STRETCH)
    for stretch in np.array_split(shifts, max(wanted, 1), axis=1):
        typical = median(stretch)  # [R]: a hiccup in one prompt is not the machine's load
        typical = typical[np.isfinite(typical)]
        if len(typical):
            squares += float(np.var(typical)) * len(typical)
            freedom += len(typical) - 1
    return [Variance(times * squares / max(freedom, 1), freedom)]


def bound(value: float, sources: Sequence[Variance]) -> Estimate:
    """Returns exp(value) with the interval given by independent sources of variance.

    `sources` begin with the prompts. Few units need Student's wider quantiles, at Satterthwaite's degrees of freedom;
    at three repeats, percentiles alone would claim 95 % and cover far less. One unit has no spread, and two have one
    difference, which is not enough: there are then no bounds.
    """
    if sources[0].freedom < FEWEST_PROMPTS - 1 or min(source.freedom for source in sources) < 1:
        return Estimate(exp(value))
    total = sum(source.variance for source in sources)
    if not total:
        return Estimate(exp(value), exp(value), exp(value))
    freedom = total**2 / sum(source.variance**2 / source.freedom for source in sources)
    if freedom < LEAST_FREEDOM:
        return Estimate(exp(value))
    half = student(freedom) * sqrt(total)
    return Estimate(exp(value), exp(value - half), exp(value + half))


def student(freedom: float) -> float:
    """Returns the two-sided 95 % point of Student's distribution."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def median(values: Array) -> Array:
    """Returns medians along the last axis, ignoring NaN: [..., R] -> [...]."""
    ordered = np.sort(values, -1)  # NaN is sorted last, and is the result if there is nothing else
    count = (~np.isnan(ordered)).sum(-1, keepdims=True)
    lower, upper = (
        np.take_along_axis(ordered, place, -1)[..., 0] for place in (np.maximum(count - 1, 0) // 2, count // 2)
    )
    return np.asarray((lower + upper) / 2)
