"""The walk that the rules share: the standard rule first, then a judgement of rejected tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from specframe.plugin import Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Laws, RandomSource, TokenTree

Judgement = Callable[["Tensor"], "Tensor"]
"""Function from the rows' current nodes, [B], to a mask of all nodes, [B, N]: those that may be accepted as a child of
that node. It is first called at the first level.
"""

FLOOR = -1e30
"""Replaces the logit of an excluded token, so that it still exceeds that of no token."""


def walk(tree: TokenTree, laws: Laws, random: RandomSource, judge: Judgement) -> Verdict:
    """Returns the accepted path, and the target's own token after it.

    At every node the target's token is drawn. The child that holds it is accepted, as by `match`, with the same noise.
    Otherwise the child with the highest target logit among those that `judge` admits is accepted, on a tie the first.
    Otherwise the row stops, and the drawn token is its bonus.
    """
    node = tree.parent.new_zeros(len(tree.parent))  # [B]
    moving = torch.ones_like(node, dtype=torch.bool)
    bonus = random.categorical(laws.after(node))  # [B]
    path: list[Tensor] = []
    for _ in range(tree.levels):
        children = (tree.parent == node[:, None]) & tree.valid & moving[:, None]  # [B, N]
        own = children & (tree.tokens == bonus[:, None])
        logits = laws.logits(node).gather(1, tree.tokens.clamp(min=0)).clamp(min=FLOOR)  # [B, N]
        fine = children & judge(node)
        likeliest = logits.where(fine, -torch.inf).argmax(1)
        found = own.any(1)
        child = own.byte().argmax(1).where(found, likeliest)
        moving = found | fine.any(1)
        path.append(child.where(moving, -1))
        if not moving.any():
            break
        node = child.where(moving, 0)
        law = laws.after(node)
        # A stopped row draws from a law with one option, because a certificate forks on draws.
        law = law.where(moving[:, None], torch.arange(law.shape[1], device=law.device) == 0)
        bonus = random.categorical(law).where(moving, bonus)
    path += [node.new_full(node.shape, -1)] * (tree.levels - len(path))
    nodes = torch.stack(path, 1) if path else node.new_zeros(len(node), 0)  # [B, A]
    return Verdict(path=nodes, length=(nodes >= 0).sum(1), bonus=bonus)
