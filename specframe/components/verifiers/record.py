"""Child slots of a batch of trees: tokens, the distributions they were drawn from, and the order of judging."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.types import Draw, TokenTree


class Record:
    """The laws that a tree's nodes were drawn from, over the whole vocabulary; each is made whole where it is read."""

    def __init__(self, tree: TokenTree, vocab: int, dtype: torch.dtype) -> None:
        """The laws of a tree whose sampled nodes have q and q_row, in a dtype."""
        assert tree.q is not None and tree.q_row is not None
        batch, rows, _ = tree.q.shape
        self._q, self._support = tree.q.flatten(0, 1), tree.support
        self._vocab, self._dtype = vocab, dtype
        first = torch.arange(0, batch * rows, rows, device=tree.q.device)[:, None]
        self.row = first + tree.q_row.clamp(0, rows - 1)
        """The law of every node, [B, N] int64."""
        self._tokens = tree.tokens.where(tree.valid, 0)

    def laws(self, rows: Tensor) -> Tensor:
        """The laws of these rows, int64 [M]: [M, V], not shared with any other."""
        q = self._q.index_select(0, rows).to(self._dtype)
        if self._support is None:
            return q
        return q.new_zeros(len(q), self._vocab).index_copy_(1, self._support, q)

    @property
    def chances(self) -> Tensor:
        """The probability of every node's token by its law as it was recorded: [B, N]."""
        if self._support is None:
            return self._q[self.row, self._tokens].to(self._dtype)
        found = self._tokens[..., None] == self._support  # [B, N, v]
        chance = self._q[self.row, found.byte().argmax(-1)].to(self._dtype)
        return chance.where(found.any(-1), 0)


@dataclass(frozen=True)
class Drawn:
    """Slots and their laws, q times `weight`: one-hot where the weight is 0 (`top`)."""

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
    """The slots of a batch of trees; slots are numbered row * N + node."""

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
    """All slots with siblings, level by level, and in a level first children first; nodes are row * N + node.

    Nodes with two children or more are numbered level by level, those with most children first, so that the j-th
    children of a level belong to its first parents, however different the rows' trees are.
    """

    inner: Tensor  # [I] the nodes with two children or more
    place: Tensor  # [B, N] where a node stands in `inner`, -1 for one with fewer children
    only: Tensor  # [B, N] bool, the slots without siblings
    levels: list[tuple[slice, list[Tensor]]]  # a level's such parents; their first, second, ... children

    @classmethod
    def of(cls, tree: TokenTree, rank: Tensor) -> Waves:
        """The waves of a tree whose nodes are their parents' `rank`-th children, from 0: [B, N]."""
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
