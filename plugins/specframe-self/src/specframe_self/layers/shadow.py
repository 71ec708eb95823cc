"""Tokens that every exit would have drafted at the committed positions, and the choice for the next draft."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GUESS = 1.0
"""Weight, in positions, of the assumed acceptance of an exit."""
MARGIN = 1e-9
"""Minimum relative advantage of a draft over none; smaller differences are rounding errors."""


class ShadowTokens:
    """Statistics of candidate exits by row: how often an exit's most likely token is the committed one.

    The weight of a cycle is `decay` times that of the next one. No drafts are needed, because the target computed the
    states of all layers at these positions anyway.
    """

    def __init__(self, exits: Sequence[int], layers: int, decay: float, guess: float | None = None) -> None:
        """Starts with no rows; `guess` is the initial acceptance of an exit; None: its share of the layers.

        With the default, a draft of one token neither gains nor loses at any exit.
        """
        self.exits = tuple(exits)
        self.layers = layers
        self.decay = decay
        self._depth = torch.tensor(self.exits, dtype=torch.float64)  # [E]
        self._guess = self._depth / layers if guess is None else torch.full_like(self._depth, guess)
        self._sums = torch.zeros(0, 4, len(self.exits), dtype=torch.float64)
        """Decayed sums: matches, positions, confidence in matches, and confidence in the others [R, 4, E]."""

    def join(self, matched: Tensor, confidence: Tensor, count: Tensor) -> None:
        """Observes the first positions of new rows, which follow the others; shapes as in `observe`."""
        self._sums = torch.cat([self._sums, _sums(matched, confidence, count)])

    def observe(self, matched: Tensor, confidence: Tensor, count: Tensor) -> None:
        """Observes the first `count` [R] of a cycle's positions: `matched` [R, M, E] bool, `confidence` [R, M, E]."""
        self._sums = self.decay * self._sums + _sums(matched, confidence, count)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._sums = self._sums[rows.cpu()]

    @property
    def acceptance(self) -> Tensor:
        """The share of positions at which each exit is right, [R, E] float64, on the host."""
        return (self._sums[:, 0] + GUESS * self._guess) / (self._sums[:, 1] + GUESS)

    def thresholds(self, exit: int) -> Tensor:
        """Returns the exit's confidence below which its token is more likely wrong, by row, [R] float64, on the host.

        This is the midpoint between its mean confidence where it was right and where it was wrong; 0 if one of them is
        unknown.
        """
        matches, positions, right, wrong = self._sums[:, :, self.exits.index(exit)].unbind(1)
        misses = positions - matches
        known = (matches > 0) & (misses > MARGIN)
        middle = (right / matches.clamp(min=MARGIN) + wrong / misses.clamp(min=MARGIN)) / 2
        return torch.where(known, middle, 0.0)

    def choose(self, depth: int) -> tuple[int, int]:
        """Returns the exit and draft length, from 0 to `depth`, with the most tokens per layer for all rows together.

        Length 0 is plain decoding, if no draft is better.
        """
        found = tokens_per_layer(self.acceptance, self.exits, self.layers, depth)  # [E, depth + 1]
        if float(found.max()) <= (1 + MARGIN) * float(found[0, 0]):
            return self.exits[0], 0
        index = int(found.argmax())
        return self.exits[index // (depth + 1)], index % (depth + 1)


def tokens_per_layer(acceptance: Tensor, exits: Sequence[int], layers: int, depth: int) -> Tensor:
    """Returns the gain of rows with acceptance [R, E] from drafts of 0 to `depth` tokens, by exit: [E, depth + 1].

    A cycle with drafts of d tokens at an exit after l of L layers is expected to commit 1 + a + .. + a^d tokens per
    row, and runs d l + L layers: DEL's TPL, summed over the rows that draft together.
    """
    lengths = torch.arange(depth + 1, dtype=acceptance.dtype)
    tokens = (acceptance[..., None] ** lengths).cumsum(-1).sum(0)  # [E, depth + 1]
    cost = torch.tensor(exits, dtype=acceptance.dtype)[:, None] * lengths + layers
    return tokens / cost


def _sums(matched: Tensor, confidence: Tensor, count: Tensor) -> Tensor:
    """Returns the sums over the first `count` [R] positions: [R, 4, E], on the host."""
    real = (torch.arange(matched.shape[1], device=count.device) < count[:, None])[..., None]  # [R, M, 1]
    right = real & matched
    sure = confidence.double()
    parts = (right.double(), real.expand_as(matched).double(), sure * right, sure * (real & ~matched))
    return torch.stack([part.sum(1) for part in parts], 1).cpu()
