"""A uniform number that is only known as far as it was compared: what shared randomness is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.interfaces import RandomSource


class LazyUniform:
    """One uniform number per row whose every comparison is a draw from the random source.

    Only comparisons of a uniform number can be observed. So it is kept as the interval that the
    comparisons so far leave, and the next one is a coin of just the right probability. Code that uses one
    number for two decisions (several traps do) is enumerated exactly that way.
    """

    def __init__(self, random: RandomSource, rows: int) -> None:
        self._random = random
        self._low = torch.zeros(rows, dtype=torch.float64)
        self._high = torch.ones(rows, dtype=torch.float64)

    def below(self, threshold: Tensor) -> Tensor:
        """Whether the number is below the threshold: [B] -> [B] bool."""
        cut = torch.minimum(torch.maximum(threshold.double(), self._low), self._high)
        hit = self._random.bernoulli((cut - self._low) / (self._high - self._low))
        self._high = torch.where(hit, cut, self._high)
        self._low = torch.where(hit, self._low, cut)
        return hit

    def inverse_cdf(self, law: Tensor) -> Tensor:
        """The index whose stretch of the cumulated law holds the number: [B, V] -> [B] int64."""
        ends = law.double().cumsum(-1)  # [B, V]
        ends[:, -1] = 1.0
        starts = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        low, high = self._low[:, None], self._high[:, None]
        overlap = (torch.minimum(ends, high) - torch.maximum(starts, low)).clamp(min=0)
        overlap = overlap * (law > 0)
        index = self._random.categorical(overlap / overlap.sum(-1, keepdim=True))
        picked = index[:, None]
        self._low = torch.maximum(self._low, starts.gather(1, picked)[:, 0])
        self._high = torch.minimum(self._high, ends.gather(1, picked)[:, 0])
        return index

    def renew(self, rows: Tensor) -> None:
        """Fresh numbers for these rows, [B] bool."""
        self._low = self._low.masked_fill(rows, 0.0)
        self._high = self._high.masked_fill(rows, 1.0)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._low, self._high = self._low[rows], self._high[rows]
