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
