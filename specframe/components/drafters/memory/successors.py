"""The likeliest next tokens of every token, as the target scored them last."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count, pairwise

from specframe.components.drafters.memory.trie import Trie

PRIOR = (0.45, 0.13, 0.07, 0.05, 0.03, 0.02, 0.015, 0.01)
"""How often the token of each rank comes next, before anything is known of a text."""
TRUST = 20
"""How many observations the prior is worth."""


class Successors:
    """The adjacency of Token Recycling (Luo et al. 2024) for one row, and how often each rank has been right.

    The successors of a token are the most probable tokens of the target at the last place where it was scored.
    """

    def __init__(self, ranks: int = len(PRIOR)) -> None:
        self._after: dict[int, list[int]] = {}
        self._right = [0] * ranks
        self._asked = 0

    def __getitem__(self, token: int) -> list[int]:
        """The token's successors, the likeliest first; none of a token that was never scored."""
        return self._after.get(token, [])

    def judge(self, text: Sequence[int]) -> None:
        """Counts which rank each token of a text had among the successors of the token before it."""
        for before, token in pairwise(text):
            known = self._after.get(before)
            if known is not None:
                self._asked += 1
                if token in known:
                    self._right[known.index(token)] += 1

    def replace(self, tokens: Sequence[int], successors: Sequence[list[int]]) -> None:
        """Overwrites the successors of each token; of equal tokens the last one counts."""
        self._after.update(zip(tokens, successors, strict=True))

    def frequencies(self) -> list[float]:
        """How often the token of each rank comes next: what was counted, and the prior for a start."""
        asked = self._asked + TRUST
        return [(right + TRUST * prior) / asked for right, prior in zip(self._right, PRIOR, strict=False)]

    def fill(self, trie: Trie, *, nodes: int, floor: float) -> None:
        """Adds the likeliest nodes to a draft until it has `nodes` of them, the root included.

        A node's path probability is the product of the rank frequencies along its path; those below `floor` are left
        out. A child that the draft has already is kept and filled below.
        """
        frequencies = self.frequencies()
        arrivals = count()
        waiting: list[tuple[float, int, int, int]] = []  # minus the path probability, arrival, parent, token

        def offer(node: int, probability: float) -> None:
            for frequency, token in zip(frequencies, self[trie.tokens[node]], strict=False):
                if probability * frequency >= floor:
                    heappush(waiting, (-probability * frequency, next(arrivals), node, token))

        offer(0, 1.0)
        while waiting and len(trie) < nodes:
            probability, _, node, token = heappop(waiting)
            offer(trie.add(node, token, -probability), -probability)
