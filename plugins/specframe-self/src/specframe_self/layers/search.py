"""Search for the parts that drafts can skip: random sets, and periodically a promising one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.plugin import SeededRandom
from specframe_self.layers.surrogate import expect

BETWEEN = 25
"""Number of rounds after which a set is chosen by the scores so far; SWIFT's value."""
KAPPA = 2.5
"""Weight of the standard deviation in the upper confidence bound, SWIFT's value."""
CANDIDATES = 512
"""Number of random sets among the candidates, in addition to the neighbours of the best set."""


class SetSearch:
    """Tries sets of `count` of n parts, one per round, and keeps the one with the best score.

    The first round tries the initial set. The search ends after `rounds` rounds, after `patience` rounds without a
    better score, or when a score is above `enough`.
    """

    def __init__(
        self, parts: int, first: Sequence[int], *, rounds: int, patience: int, enough: float, seed: int = 0
    ) -> None:
        self.best = torch.zeros(parts, dtype=torch.bool)
        """The best set: [n] bool."""
        self.best[list(first)] = True
        self.score = 0.0
        """Score of the best set; 0 before the first round."""
        self.scores: list[float] = []
        """All scores, in the order of rounds."""
        self._count = len(first)
        self._tried: list[Tensor] = []
        self._limits = rounds, patience, enough
        self._since = 0
        self._random = SeededRandom(seed, 1).draft

    @property
    def done(self) -> bool:
        """True once the search has ended."""
        rounds, patience, enough = self._limits
        return len(self.scores) >= rounds or self._since >= patience or self.score > enough

    def next(self) -> Tensor:
        """Returns the next set to try, [n] bool; its score must be given to `record`."""
        if not self.scores:
            chosen = self.best
        elif len(self.scores) % BETWEEN == 0:
            chosen = self.promising()
        else:
            chosen = self._draw(1)[0]
        self._tried.append(chosen)
        return chosen

    def record(self, score: float) -> None:
        """Records the score of the set that was tried."""
        self._since += 1
        if not self.scores or score > self.score:
            self.best, self.score, self._since = self._tried[-1], score, 0
        self.scores.append(score)

    def promising(self) -> Tensor:
        """Returns the candidate set with the highest upper confidence bound, given all scores: [n] bool."""
        candidates = torch.cat([self._draw(CANDIDATES), neighbours(self.best)])
        tried = torch.stack(self._tried[: len(self.scores)]).double()
        mean, deviation = expect(tried, torch.tensor(self.scores, dtype=torch.float64), candidates.double())
        return candidates[(mean + KAPPA * deviation).argmax()]

    def _draw(self, sets: int) -> Tensor:
        """Draws random sets, [sets, n] bool."""
        parts = len(self.best)
        drawn = self._random.without_replacement(torch.ones(1, sets, parts, dtype=torch.float64), self._count)[0]
        return torch.zeros(sets, parts, dtype=torch.bool).scatter(1, drawn, torch.ones_like(drawn, dtype=torch.bool))


def neighbours(chosen: Tensor) -> Tensor:
    """Returns the sets of equal size that differ from one set [n] in a single part: [k (n - k), n] bool."""
    inside, outside = chosen.nonzero()[:, 0], (~chosen).nonzero()[:, 0]
    away, in_place = torch.cartesian_prod(inside, outside).reshape(-1, 2).unbind(1)
    found = chosen.repeat(len(away), 1)
    rows = torch.arange(len(away))
    found[rows, away], found[rows, in_place] = False, True
    return found
