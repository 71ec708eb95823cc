"""The candidates of a dynamic tree as Python numbers: a few of them cost less on the host than one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.kernel.costs import added
from specframe.kernel.types import Draw, TokenTree
from specframe.neural.transfer import tensor_on


class Candidates:
    """Candidates of one batch row in order of creation: 0 is the root, then the beam's children level by level."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.values = [0.0]  # log-probabilities of the paths
        self.grown = [0]  # the beams of all levels, which are the growing tree's nodes
        self.ended = False
        self._beam = {0: 0}  # node -> index of itself or its ancestor in the last frontier
        self._first = 0  # the first candidate of the newest level

    @property
    def width(self) -> int:
        """Number of nodes in the beam, the last of the growing tree's."""
        return len(self._beam)

    def expanded(self) -> None:
        """Records that the beam is the frontier now."""
        self._beam = {candidate: place for place, candidate in enumerate(self._beam)}

    def add(self, gains: list[list[list[float]]], tokens: list[list[list[int]]], level: int) -> None:
        """Adds the beam's children, from one level of a proposal's log-probabilities and tokens, [F][K][width]."""
        self._first = len(self.values)
        for parent, place in self._beam.items():
            value = -math.inf if self.ended else self.values[parent]
            self.values += [value + gain for gain in gains[place][level]]
            self.tokens += tokens[place][level]
            self.parents += [parent] * len(tokens[place][level])

    def choose(self, count: int) -> None:
        """Makes the best `count` candidates of the newest level the beam."""
        best = self.best(count, self._first)
        self._beam = {candidate: self._beam[self.parents[candidate]] for candidate in best}
        self.grown += best

    def best(self, count: int, first: int = 0) -> list[int]:
        """The candidates from `first` on with the largest values, best first; ties in order of age."""
        return sorted(range(first, len(self.values)), key=self.values.__getitem__, reverse=True)[:count]

    def newest(self, count: int) -> int:
        """Number of candidates of the newest level among the best `count`."""
        return sum(candidate >= self._first for candidate in self.best(count))

    def reached(self, chosen: Sequence[int]) -> list[bool]:
        """Returns which of these candidates have a nonzero path probability."""
        return [self.values[candidate] > -math.inf for candidate in chosen]

    def chances(self, most: int) -> list[float]:
        """The probabilities of the best `most` candidates' paths, the root left out, best first."""
        return [math.exp(self.values[candidate]) for candidate in self.best(most)[1:]]

    def promising(self, most: int, levels: int) -> float:
        """Estimate of the expected tokens that `levels` further levels would add among the best `most` candidates.

        Each level is assumed to keep the share of the probability that the newest level kept.
        """
        best = set(self.best(most))
        newest = range(self._first, len(self.values))
        found = added(math.exp(self.values[new]) for new in newest if new in best)
        before = added(math.exp(self.values[parent]) for parent in self._beam if parent in best)
        share = min(found / before, 1.0) if before else 0.0
        gains = [found := found * share for _ in range(levels)]
        return added(gains)

    def expected_tokens(self, count: int) -> float:
        """The expected number of accepted tokens among the best `count`, the root counted too."""
        return added(math.exp(self.values[candidate]) for candidate in self.best(count))


def tree_of(rows: Sequence[Candidates], chosen: Sequence[Sequence[int]], levels: int, like: Tensor) -> TokenTree:
    """The tree of each row's chosen candidates, parents before their children, on the device of `like`."""
    nodes = []
    for row, candidates in zip(rows, chosen, strict=True):
        place = {candidate: node for node, candidate in enumerate(candidates)}
        parents = [place.get(row.parents[candidate], -1) for candidate in candidates]
        nodes.append([[row.tokens[candidate] for candidate in candidates], parents, [Draw.TOP] * len(parents)])
    tokens, parent, draw = tensor_on(like.device, nodes).unbind(1)  # [B, N] each
    return TokenTree(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), draw, levels)
