"""Distributions given outright, a target and a drafter with exactly those, and uniform numbers revealed lazily."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specframe.components.targets.table import TableTarget
from specframe.kernel.capabilities import Promise
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.sampling import RandomSource
from specframe.kernel.types import Committed, Context, Frontier, Proposal, TokenTree

NEVER = -1e4
"""A logit whose probability is 0, exactly, also after any matrix product."""


def logits_of(law: Tensor) -> Tensor:
    """Logits whose softmax is the law, zeros included: [...] -> [...] float64."""
    return law.double().log().clamp(min=NEVER)


class GivenTarget(TableTarget):
    """A target whose law is given: p [V] for every context, or p [V, V] by the last token."""

    def __init__(self, p: Tensor, eos: int | None = None) -> None:
        vocab = p.shape[-1]
        super().__init__(vocab=vocab, order=1, hidden=vocab + vocab % 2, eos=eos)
        self._head = torch.eye(vocab, self.hidden, dtype=torch.float64)
        rows = logits_of(p).expand(vocab, vocab)
        self._features = torch.zeros(vocab + 1, self.hidden, dtype=torch.float64)
        self._features[:vocab, :vocab] = rows


class GivenDrafter:
    """A drafter whose raw law is given: q [V], q [V, V] by the node's token, or q [K, V, V] for K levels.

    Level j of a block depends on the frontier node's token alone, as in parallel drafters.
    """

    taps: frozenset[str] = frozenset()
    promise = Promise()

    def __init__(self, q: Tensor) -> None:
        vocab = q.shape[-1]
        block = len(q) if q.dim() == 3 else 1
        self.vocab: int = vocab
        self.promise = replace(self.promise, block=block)
        self._logits = logits_of(q).expand(block, vocab, vocab)

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def expand(self, frontier: Frontier) -> Proposal:
        """Logits [B, F, K, V] by the tokens of the frontier's nodes."""
        tokens = frontier.tree.tokens.gather(1, frontier.nodes)  # [B, F]
        return Proposal(self._logits[:, tokens].movedim(0, 2))

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The recipe's tree over the given laws."""
        if tree is None:
            raise TypeError("a given drafter grows a tree policy")
        return tree.grow(self.expand, root, context)

    def open(self, slots: int, room: int) -> None:
        """Carries nothing from cycle to cycle."""

    def commit(self, committed: Committed) -> None:
        """Carries nothing from cycle to cycle."""

    def keep(self, rows: Tensor) -> None:
        """Carries nothing from cycle to cycle."""


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

    def less_than(self, threshold: Tensor) -> Tensor:
        """Returns whether the number is below the threshold: [B] -> [B] bool."""
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
