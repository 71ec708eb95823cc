"""Heads that belong to a level each: which of them answer for the nodes of a frontier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError, WeightsError
from specframe.kernel.types import Frontier


@dataclass(frozen=True)
class Depths:
    """How deep the nodes of a frontier lie, and which depths there are among them."""

    depth: Tensor  # [B, F] int64
    found: list[int]

    @classmethod
    def of(cls, frontier: Frontier, depth: Tensor, drafter: str, heads: int) -> Depths:
        """The depths [B, F] of a frontier's nodes, of a drafter with so many heads.

        Raises CompositionError in the drafter's name for a node below which there is no head. Which heads answer is
        control flow, so the host must know it, once for every forward below the root.
        """
        found = depth.unique().tolist() if frontier.tree.levels else [0]
        if max(found) >= heads:
            raise too_deep(drafter, heads)
        return cls(depth, found)

    def choose(self, answer: Callable[[int], Tensor]) -> Tensor:
        """Of every node the answer of its own level's head, `answer(level)` [B, F, ..] from level 1 on."""
        first, *others = self.found
        chosen = answer(first + 1)
        for depth in others:
            own = (self.depth == depth).view(*self.depth.shape, *[1] * (chosen.dim() - 2))
            chosen = torch.where(own, answer(depth + 1), chosen)
        return chosen


def own_lm_heads(weights: str) -> WeightsError:
    """The error of a checkpoint whose heads have LM heads of their own, for a drafter that is given another head."""
    return WeightsError(
        f"the drafter in {weights} has an LM head for every level, and no other head reads it: leave drafter.head out, "
        "or train a drafter with this head"
    )


def too_deep(drafter: str, heads: int) -> CompositionError:
    """The error of a tree that is deeper than the drafter, with a head per level, has heads."""
    return CompositionError(
        f"drafter {drafter} has {heads} heads and drafts no deeper than {heads} levels; "
        f"make the tree at most {heads} deep, or train more heads"
    )
