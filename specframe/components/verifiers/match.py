"""The safe rule: ask the target, then look whether the draft said the same."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.interfaces import RandomSource
from specframe.kernel.types import ALL_DRAWS, TokenTree, Verdict


class Match:
    """Draws y from the target's law at the node and goes to the child that is y; without one, y is the bonus.

    What is emitted is the target's own draw, so the rule is exact for every tree, however it came
    about, and needs no q. For trees of `top` draws no rule accepts more. Among children of the same
    token the first counts. At temperature 0 this is greedy decoding.

    Source: token matching as in SpecInfer (Miao et al., 2024, section 4.3, "naive sampling").
    """

    lossless = True
    accepts = ALL_DRAWS
    needs_exact = False

    def verify(self, tree: TokenTree, p: Tensor, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        peak, said = p.max(-1)  # [B, N]
        if (peak == 1).all():
            return follow(tree, said)
        batch, count, vocab = p.shape
        laws = p.reshape(batch * count, vocab)
        first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin
        # One number says whose child a node is and which token; negative for the root and for padding.
        said = (tree.parent * vocab + tree.tokens).where(tree.valid, -1)  # [B, N]
        bonus = random.categorical(laws.index_select(0, first))  # [B]
        child = torch.zeros_like(first)  # [B]; 0, the root, is nobody's child and so stands for none
        path: list[Tensor] = []
        for _ in range(tree.levels):
            found = (said == (child * vocab + bonus)[:, None]).byte().argmax(1)  # the first child that is y
            child = found * (child > 0) if path else found
            path.append(child)
            if not child.any():
                break
            drawn = random.categorical(laws.index_select(0, first + child))
            bonus = drawn.where(child > 0, bonus)
        path += [torch.zeros_like(first)] * (tree.levels - len(path))
        nodes = torch.stack(path, 1) if path else first.new_zeros(batch, 0)  # [B, A]
        found = nodes > 0
        return Verdict(path=nodes.where(found, -1), length=found.sum(1), bonus=bonus)


def follow(tree: TokenTree, said: Tensor) -> Verdict:
    """The path of what the target says after every node, said [B, N]: all levels at once.

    A node is reached when it and all its ancestors are what the node above says, and are the first
    among their siblings to be it.
    """
    count = said.shape[1]
    right = (tree.tokens == said.gather(1, tree.parent.clamp(min=0))) & tree.valid  # [B, N]
    siblings = tree.parent[:, :, None] == tree.parent[:, None]  # [B, N, N]
    right &= ~(siblings & right[:, None]).tril(-1).any(-1)
    right[:, 0] = True
    lost = (tree.ancestors & ~right[:, None]).any(-1)  # [B, N]
    length, leaf = tree.depth.masked_fill(lost, -1).max(1)  # [B]; one node a depth is reached at most
    bonus = said.gather(1, leaf[:, None])[:, 0]
    # Parents come before children, so the path in index order is the path from the root down.
    steps = torch.arange(count, device=said.device)
    above = tree.ancestors.gather(1, leaf[:, None, None].expand(-1, 1, count))[:, 0]  # [B, N]
    path = steps.where(above & (steps > 0), count).sort(1).values[:, : tree.levels]
    if path.shape[1] < tree.levels:
        path = torch.nn.functional.pad(path, (0, tree.levels - path.shape[1]), value=count)  # [B, A]
    return Verdict(path.masked_fill(path == count, -1), length, bonus)
