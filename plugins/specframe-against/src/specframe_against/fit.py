"""Goodness-of-fit tests of counted outcomes, and the total variation that such a test detects."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from scipy.special import chdtrc, chdtri, chndtrinc

LEAST = 5.0
"""Expected count from which an outcome has its own cell; others are counted together."""
NEVER = 1e-6
"""Expected count below which the remaining probability is a rounding error: a counted outcome is then an error."""
LEVEL = 1e-6
"""Probability with which a test refuses samples that do follow the distribution."""
POWER = 0.99
"""Probability with which a test refuses samples whose distribution differs by `detectable`."""


@dataclass(frozen=True)
class FitTest:
    """Result of a test."""

    samples: int
    freedom: int
    """Degrees of freedom; 0 if no outcome is expected often enough to be tested."""
    statistic: float
    p: float
    """Probability of a statistic at least this large if the samples follow the distribution."""
    detectable: float | None
    """Total variation between the distributions from which the test refuses with probability `POWER`."""
    worst: Any
    """The outcome with the largest deviation, with its expected and actual count."""
    wanted: float
    got: int

    @property
    def refused(self) -> bool:
        """True if the samples do not follow the distribution."""
        return self.p < LEVEL

    def as_dict(self) -> dict[str, Any]:
        """Returns all values as data for JSON."""
        return asdict(self)


def fit_counts(counts: Mapping[Any, int], law: Mapping[Any, float]) -> FitTest:
    """Compares counts of outcomes with their probabilities by a G-test."""
    cells = _cells(counts, law)
    samples, freedom = sum(counts.values()), len(cells) - 1
    if freedom < 1:
        return FitTest(samples, 0, 0.0, 1.0, None, None, 0.0, 0)
    statistic = sum(2 * got * log(got / wanted) for _, wanted, got in cells if got)
    worst = max(cells, key=lambda cell: (cell[2] - cell[1]) ** 2 / cell[1])
    return _fit(samples, freedom, statistic, worst)


def fit_ranks(ranks: Sequence[int], laws: np.ndarray) -> FitTest:
    """Compares ranks of drawn tokens, 0 the most likely, with the probabilities [n, R] of the ranks in each draw.

    The last rank stands for all others; ranks that are too rare are added to it. The statistic is Pearson's, with the
    exact covariance of the counts.
    """
    often = [rank for rank in range(laws.shape[1] - 1) if laws[:, rank].sum() >= LEAST]
    if often and (1 - laws[:, often].sum(1)).sum() < LEAST:
        often.pop()
    samples, count = len(laws), len(often) + 1
    if count == 1:
        return FitTest(samples, 0, 0.0, 1.0, None, None, 0.0, 0)
    places = {rank: place for place, rank in enumerate(often)}
    got = np.bincount([places.get(rank, len(often)) for rank in ranks], minlength=count)
    laws = np.column_stack([laws[:, often], (1 - laws[:, often].sum(1)).clip(min=0)])
    wanted = laws.sum(0)
    spread = np.diag(wanted) - laws.T @ laws
    off = got - wanted
    statistic = float(off[:-1] @ np.linalg.pinv(spread[:-1, :-1]) @ off[:-1])
    worst = int((off**2 / spread.diagonal().clip(min=NEVER)).argmax())
    rank = often[worst] + 1 if worst < len(often) else None
    return _fit(samples, count - 1, statistic, (rank, float(wanted[worst]), int(got[worst])))


def _fit(samples: int, freedom: int, statistic: float, worst: tuple[Any, float, int]) -> FitTest:
    """Returns the result of a test.

    By Pinsker's inequality, samples of a distribution at total variation d have a statistic with noncentrality at least
    4 n d^2; so has Pearson's.
    """
    noticed = chndtrinc(chdtri(freedom, LEVEL), freedom, 1 - POWER)
    return FitTest(
        samples, freedom, statistic, float(chdtrc(freedom, statistic)), sqrt(noticed / (4 * samples)), *worst
    )


def _cells(counts: Mapping[Any, int], law: Mapping[Any, float]) -> list[tuple[Hashable, float, int]]:
    """Returns the outcomes, or groups of outcomes, that are expected often enough, with expected and actual counts."""
    total = sum(counts.values())
    found = [(outcome, total * mass, counts.get(outcome, 0)) for outcome, mass in law.items() if total * mass >= LEAST]
    wanted, got = total - sum(cell[1] for cell in found), total - sum(cell[2] for cell in found)
    if wanted >= LEAST or (got and wanted < NEVER):
        found.append((None, max(wanted, NEVER**2), got))
    elif found:
        outcome, least, had = found.pop(min(range(len(found)), key=lambda i: found[i][1]))
        found.append((outcome, least + wanted, had + got))
    return found
