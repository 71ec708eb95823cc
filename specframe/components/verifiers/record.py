"""What a batch of trees records about its slots: the tokens, and the laws they were drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.types import Draw, TokenTree


@dataclass(frozen=True)
class Drawn:
    """Some slots and their laws, q times `weight`: one-hot where the weight is 0 (`top`)."""

    token: Tensor  # [M, 1]
    chance: Tensor  # [M, 1], the probability that the law gives the token; positive
    q: Tensor  # [M, V], 0 at the tokens of earlier siblings that can't come again
    weight: Tensor  # [M, 1]

    def first(self, count: int) -> Drawn:
        """The first so many slots."""
        return Drawn(self.token[:count], self.chance[:count], self.q[:count], self.weight[:count])

    def subtract_from(self, left: Tensor) -> Tensor:
        """Turns left [M, V] into [left - law]+, in place, and returns what it sums to: [M].

        The token's own entry becomes 0. That differs from [left - law]+ only where the slot is accepted
        for sure, and there what is left is never read.
        """
        left.addcmul_(self.q, self.weight, value=-1).clamp_(min=0).scatter_(1, self.token, 0)
        return left.sum(-1)


class Record:
    """The slots of a batch of trees; slots are numbered row * N + node."""

    def __init__(self, tree: TokenTree, q: Tensor, q_row: Tensor) -> None:
        """Slots drawn from laws q [B, P, V] according to q_row [B, N]."""
        batch, rows, vocab = q.shape
        count = tree.tokens.shape[1]
        parent = tree.parent.where(tree.valid, -1)  # [B, N]
        earlier = (parent[:, :, None] == parent[:, None]) & (parent >= 0)[:, None]  # [B, N, N]
        self.earlier = earlier.tril(-1)
        """[b, n, m]: whether m is an earlier sibling of n."""
        row = q_row.clamp(0, rows - 1)
        source = torch.where(tree.draw == Draw.WITHOUT_REPLACEMENT, row, -1)  # [B, N]
        gone = self.earlier & (source[:, :, None] == source[:, None]) & (source >= 0)[:, None]
        self._gone = gone.view(batch * count, count)
        self._tokens = tree.tokens.where(tree.valid, 0)
        self._given = (tree.draw == Draw.TOP).flatten()[:, None]
        self._q = q.reshape(batch * rows, vocab)
        self._row = (torch.arange(0, batch * rows, rows, device=q.device)[:, None] + row).flatten()

    def laws(self, slots: Tensor) -> Drawn:
        """The slots [M] with the laws they were drawn from, given their earlier siblings."""
        gone = self._gone.index_select(0, slots)  # [M, N]
        tokens = self._tokens.index_select(0, slots // gone.shape[1])
        token = self._tokens.flatten().index_select(0, slots)[:, None]
        q = self._q.index_select(0, self._row.index_select(0, slots))  # [M, V]
        q = q.scatter_reduce_(1, tokens, (~gone).to(q.dtype), "prod")
        mass = q.sum(-1, keepdim=True)
        chance = q.gather(1, token)
        given = self._given.index_select(0, slots) | (chance <= 0)  # 0 cannot be: then one-hot is exact
        weight = torch.where(given, 0, 1 / mass)
        return Drawn(token, torch.where(given, 1, chance * weight), q, weight)
