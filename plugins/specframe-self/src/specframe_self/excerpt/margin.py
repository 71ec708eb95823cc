"""RAPID's acceptance: the target's distribution shifted towards the drafter's. Lossy."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Laws, Needs, RandomSource, Run, TokenTree, Verdict, descend

TRUSTED = 0.1
"""Tokens with at least this share of the drafter's highest probability are taken into account."""


class Rapid:
    """Rejection sampling by a target that learns from the drafter. Lossy.

    With the target's distribution p and the recorded q, a token is accepted with probability min(1, s / q), where s =
    softmax(log p - m [q >= .1 max q] (p - q)). After a rejection the next one is drawn from norm([max(p - q, p - s)]+).
    The output has neither distribution; with a margin m of 0 it is p's, as by `recursive`. At temperature 0 nothing
    changes, because tokens with probability 0 keep it. Siblings are judged one after the other against the remainder.

    Source: RAPID (Chen et al. 2025, arXiv 2502.20330), whose code uses a margin of 1 by default, and .1 in its
    evaluation.

    Options:
        margin: m, at least 0
    """

    lossless = False
    needs = Needs(exact=True)

    def __init__(self, *, margin: float = 0.1) -> None:
        if not 0 <= margin < float("inf"):
            raise InputError(f"rapid: margin must be at least 0 and finite, not {margin:g}")
        self.margin = margin

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        return descend(tree, p, random, self._judge, longest=1)

    def _judge(self, left: Tensor, q: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """Returns the acceptance [B, N] of a run's siblings, and what a rejection subtracts from the law, [B, V]."""
        shifted = self.shift(left, q)
        token = run.tokens.where(run.members, 0)
        chance = (shifted.gather(1, token) / q.gather(1, token)).clamp(max=1)
        return chance.where(run.members, 0), torch.minimum(q, shifted)

    def shift(self, p: Tensor, q: Tensor) -> Tensor:
        """Returns softmax(log p - m [q >= .1 max q] (p - q)), [..., V]."""
        trusted = q >= TRUSTED * q.amax(-1, keepdim=True)
        return torch.softmax(p.log() - self.margin * trusted * (p - q), -1)
