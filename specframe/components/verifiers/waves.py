"""The order in which the siblings of a batch of trees can be judged side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.types import TokenTree


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
        above = place.view(batch, count).gather(1, parent)
        by_wave = ((depth * count + rank) * max(total, 1) + above).where(slot, torch.iinfo(torch.int64).max)
        slots = by_wave.flatten().argsort()
        levels, start, done = [], 0, 0
        for row in sizes[1:]:
            waves = [size for size in row if size]
            families = waves[0] if waves else 0
            levels.append((slice(start, start + families), list(slots[done : done + sum(waves)].split(waves))))
            start, done = start + families, done + sum(waves)
        return cls(inner, place.view(batch, count), only, levels)
