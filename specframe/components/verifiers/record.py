"""Child slots of a batch of trees: tokens, the distributions they were drawn from, and the order of judging."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.types import Draw, TokenTree


class Record:
    """The laws that a tree's nodes were drawn from, expanded to the whole vocabulary when they are read."""

    def __init__(self, tree: TokenTree, vocab: int, dtype: torch.dtype) -> None:
        """Prepares the laws of a tree with q and q_row, in the given dtype."""
        assert tree.q is not None and tree.q_row is not None
        batch, rows, _ = tree.q.shape
        self._q, self._support = tree.q.flatten(0, 1), tree.support
        self._vocab, self._dtype = vocab, dtype
        first = torch.arange(0, batch * rows, rows, device=tree.q.device)[:, None]
        self.row = first + tree.q_row.clamp(0, rows - 1)
        """Row of each node's law in the flattened q, [B, N] int64."""
        self._tokens = tree.tokens.where(tree.valid, 0)

    def laws(self, rows: Tensor) -> Tensor:
        """A copy of the laws of rows [M] int64: [M, V], free to be changed in place."""
        q = self._q.index_select(0, rows).to(self._dtype)
        if self._support is None:
            return q
        return q.new_zeros(len(q), self._vocab).index_copy_(1, self._support, q)

    @property
    def chances(self) -> Tensor:
        """The probability of each node's token under its recorded law: [B, N]."""
        if self._support is None:
            return self._q[self.row, self._tokens].to(self._dtype)
        found = self._tokens[..., None] == self._support  # [B, N, v]
        chance = self._q[self.row, found.byte().argmax(-1)].to(self._dtype)
        return chance.where(found.any(-1), 0)


@dataclass(frozen=True)
class Drawn:
    """Child slots and their laws: q times `weight`, or one-hot where the weight is 0 (`top`)."""

    token: Tensor  # [M, 1]
    chance: Tensor  # [M, 1], the probability that the law gives the token; positive
    q: Tensor  # [M, V], 0 at the tokens of earlier siblings that can't come again
    weight: Tensor  # [M, 1]

    def first(self, count: int) -> Drawn:
        """The first `count` slots."""
        return Drawn(self.token[:count], self.chance[:count], self.q[:count], self.weight[:count])

    def subtract_from(self, left: Tensor) -> Tensor:
        """Turns left [M, V] into [left - law]+, in place, and returns its sums: [M].

        The token's own entry becomes 0. That differs from [left - law]+ only where the slot is accepted for sure, and
        there the remainder is never read.
        """
        left.addcmul_(self.q, self.weight, value=-1).clamp_(min=0).scatter_(1, self.token, 0)
        return left.sum(-1)


class TreeSlots:
    """Child slots of a batch of trees, numbered row * N + node."""

    def __init__(self, tree: TokenTree, record: Record) -> None:
        """The slots of a tree, drawn from the laws of its record."""
        batch, count = tree.tokens.shape
        parent = tree.parent.where(tree.valid, -1)  # [B, N]
        earlier = (parent[:, :, None] == parent[:, None]) & (parent >= 0)[:, None]  # [B, N, N]
        self.earlier = earlier.tril(-1)
        """[b, n, m]: whether m is an earlier sibling of n."""
        source = torch.where(tree.draw == Draw.WITHOUT_REPLACEMENT, record.row, -1)  # [B, N]
        gone = self.earlier & (source[:, :, None] == source[:, None]) & (source >= 0)[:, None]
        self._gone = gone.view(batch * count, count)
        self._tokens = tree.tokens.where(tree.valid, 0)
        self._given = (tree.draw == Draw.TOP).flatten()[:, None]
        self._record, self._row = record, record.row.flatten()

    def laws(self, slots: Tensor) -> Drawn:
        """The slots [M] with the laws they were drawn from, given their earlier siblings."""
        gone = self._gone.index_select(0, slots)  # [M, N]
        tokens = self._tokens.index_select(0, slots // gone.shape[1])
        token = self._tokens.flatten().index_select(0, slots)[:, None]
        q = self._record.laws(self._row.index_select(0, slots))  # [M, V]
        q = q.scatter_reduce_(1, tokens, (~gone).to(q.dtype), "prod")
        mass = q.sum(-1, keepdim=True)
        chance = q.gather(1, token)
        given = self._given.index_select(0, slots) | (chance <= 0)  # 0 cannot be: then one-hot is exact
        weight = torch.where(given, 0, 1 / mass)
        return Drawn(token, torch.where(given, 1, chance * weight), q, weight)


@dataclass(frozen=True)
class Waves:
    """All slots with siblings by level, and within a level by rank; nodes are numbered row * N + node.

    Nodes with two or more children are sorted by level, then by descending number of children. The j-th children
    of a level therefore belong to a prefix of its parents, even if the rows' trees differ.
    """

    inner: Tensor  # [I] the nodes with two children or more
    place: Tensor  # [B, N] where a node stands in `inner`, -1 for one with fewer children
    only: Tensor  # [B, N] bool, the slots without siblings
    levels: list[tuple[slice, list[Tensor]]]  # a level's such parents; their first, second, ... children

    @classmethod
    def of(cls, tree: TokenTree, rank: Tensor) -> Waves:
        """The waves of a tree, given each node's rank among its siblings, from 0: [B, N]."""
        batch, count = tree.tokens.shape
        slot = tree.valid & (tree.parent >= 0)
        parent = tree.parent.clamp(min=0)
        children = torch.zeros_like(parent).scatter_add_(1, parent, slot.long())  # [B, N]
        only = slot & (children.gather(1, parent) == 1)
        slot = slot & ~only
        depth = tree.depth
        size = torch.bincount((depth * count + rank)[slot], minlength=(tree.levels + 1) * count)
        sizes = size.view(-1, count).tolist()  # [levels + 1, N], slots by depth and rank
        total = sum(row[0] for row in sizes)

        by_family = (depth * count + count - children).where(children > 1, (tree.levels + 1) * count)
        inner = by_family.flatten().argsort(stable=True)[:total]
        place = torch.full_like(parent, -1).flatten()
        place[inner] = torch.arange(total, device=inner.device)
        parent_place = place.view(batch, count).gather(1, parent)
        by_wave = ((depth * count + rank) * max(total, 1) + parent_place).where(slot, torch.iinfo(torch.int64).max)
        slots = by_wave.flatten().argsort()
        levels, start, done = [], 0, 0
        for row in sizes[1:]:
            waves = [size for size in row if size]
            families = waves[0] if waves else 0
            levels.append((slice(start, start + families), list(slots[done : done + sum(waves)].split(waves))))
            start, done = start + families, done + sum(waves)
        return cls(inner, place.view(batch, count), only, levels)
