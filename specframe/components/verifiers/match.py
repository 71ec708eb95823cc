"""Token matching: draw the target's token, then continue at the child with that token, if there is one."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.capabilities import Needs
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import TokenTree, Verdict


class Match:
    """Draws y from the target's law at the node and goes to the child with token y; without one, y is the bonus.

    The emitted token is the target's own draw, so the rule is exact for any tree and needs no q. For trees of `top`
    draws no rule accepts more. If several children have the same token, the first is taken. At temperature 0 this is
    greedy decoding.

    Source: token matching as in SpecInfer (Miao et al., 2024, section 4.3, "naive sampling").
    """

    lossless = True
    needs = Needs(by_position=True)
    """Noise by position: one token is drawn per position of the text, so a seed gives the same text for every drafter,
    tree and batch."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus; only the laws of nodes on the path are computed, level by level."""
        child = tree.parent.new_zeros(len(tree.parent))  # [B]; 0, the root, is no node's child and stands for none
        law = laws.after(child)  # [B, V]
        vocab = law.shape[1]
        # One number holds a node's parent and its token; negative for the root and for padding.
        child_of = (tree.parent * vocab + tree.tokens).where(tree.valid, -1)  # [B, N]
        bonus = random.categorical(law)  # [B]
        path: list[Tensor] = []
        for _ in range(tree.levels):
            found = (child_of == (child * vocab + bonus)[:, None]).byte().argmax(1)  # the first child with token y
            child = found * (child > 0) if path else found
            path.append(child)
            if not child.any():
                break
            law = laws.after(child)
            if len(law) > 1:  # a row that has stopped draws from a law of one option: in a certificate a draw is a fork
                law = law.where((child > 0)[:, None], torch.arange(vocab, device=law.device) == 0)
            bonus = random.categorical(law).where(child > 0, bonus)
        path += [torch.zeros_like(child)] * (tree.levels - len(path))
        nodes = torch.stack(path, 1) if path else child.new_zeros(len(child), 0)  # [B, A]
        found = nodes > 0
        return Verdict(path=nodes.where(found, -1), length=found.sum(1), bonus=bonus)
