"""Greedy drafting: the most probable tokens and one draw, recorded so that `recursive` is optimal."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.plugin import Context, Draw, Expand, Frontier, Growth, Shape, TokenTree, one_of


class Greedy:
    """Every node's k children are one draw and the k - 1 most probable tokens.

    The draft law of Hu et al. 2025 ("Towards optimal multi-draft speculative decoding"); with two children, the pairs
    of SpecHub (Sun et al. 2024). The draw is the first child, recorded with its law: q without the most probable
    tokens, renormalised. In this order, `recursive` accepts as much as an optimal transport: p(top) + sum of min(p, q')
    over the other tokens. With the draw last, it would accept less.

    If q has nothing beyond its most probable tokens (temperature 0, a truncated law), the draw is an invalid node. A
    single child is a plain draw.

    Options:
        widths: the number of children per node, level by level
    """

    def __init__(self, *, widths: list[int]) -> None:
        self.shape = Shape.of_widths(widths)
        self.widths = widths
        self.promise = self.shape.promise(Draw.IID, *([Draw.TOP] if max(widths) > 1 else []))

    def smaller(self) -> Greedy:
        """Returns a copy of this policy with at most two levels, two children per node and four drafted nodes."""
        return Greedy(widths=[min(width, 2) for width in self.widths[:2]])

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the tree below root [B]: always `nodes` nodes."""
        growth = Growth(root)
        beam = torch.zeros_like(root)[:, None]  # [B, M] the level above
        while growth.levels < len(self.widths):
            logits = expand(Frontier(growth.tree, beam)).whole.logits  # [B, F, K, V]
            block = logits.unbind(2)[: len(self.widths) - growth.levels]
            for level_logits in block:
                each = beam.shape[1] // level_logits.shape[1]  # nodes of this level below one frontier node
                beam = self._add(growth, level_logits.repeat_interleave(each, 1), beam, context)
        return growth.tree

    def _add(self, growth: Growth, logits: Tensor, parents: Tensor, context: Context) -> Tensor:
        """Appends the children of parents [B, M] with logits [B, M, V]; returns their indices."""
        width, vocab = self.widths[growth.levels], logits.shape[-1]
        top = logits.topk(min(width - 1, vocab)).indices  # [B, M, T]
        law = context.sampling.law(logits, growth.tree, parents).scatter(2, top, 0)  # [B, M, V]
        mass = law.sum(-1)
        law = one_of(law, mass)
        row = growth.record(law)
        drawn = context.random.categorical(law).where(mass > 0, -1)  # [B, M]
        tokens = torch.cat([drawn[..., None], top], 2)  # [B, M, width]
        if missing := width - tokens.shape[2]:
            tokens = torch.nn.functional.pad(tokens, (0, missing), value=-1)
        tokens = tokens.flatten(1)
        slots = torch.arange(tokens.shape[1], device=tokens.device)  # [M * width]
        rows = (slots // width).expand_as(tokens)
        draw = torch.where(slots % width == 0, int(Draw.IID), int(Draw.TOP))
        growth.add(tokens, parents.gather(1, rows), draw, valid=tokens >= 0, q_rows=rows + row)
        return torch.arange(growth.size - tokens.shape[1], growth.size, device=tokens.device).expand_as(tokens)
