"""A chain that ends when a rejection becomes too likely, or after an uncertain token."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Context, Draw, Expand, Forecast, Growth, Promise, TokenTree, one_of


class Threshold:
    """A chain that continues while the probability that all of it is accepted is high (Huang et al. 2024, SpecDec++).

    A token is drafted only if 1 - (product of the confidences down to it) is at most `threshold`: the predicted
    probability that some token is rejected. The confidence is the drafter's own estimate if it has one, as with the
    head `acceptance`, otherwise the probability of its most probable token at temperature 1. Both are known before the
    token is drawn, so stopping does not depend on the omitted token. The first token is always drafted.

    With `least`, a token whose confidence is below it is drafted and ends the chain: Kangaroo's second exit (Liu et al.
    2024), with `threshold: 1.0`, with which the first rule never stops.

    Each level needs one host sync, and the drafter is not called once all rows have stopped.

    Options:
        depth: maximum number of drafted tokens
        threshold: predicted probability of a rejection at which to stop
        least: minimum confidence of a token for another one to be drafted below it
        draw: top (the most probable token) or iid (a draw from the drafter's law)
    """

    def __init__(self, *, depth: int = 8, threshold: float = 0.7, least: float = 0.0, draw: Draw = Draw.TOP) -> None:
        if depth < 1:
            raise InputError(f"a chain needs a depth of at least 1, got {depth}")
        if not 0 <= threshold <= 1:
            raise InputError(f"a threshold is a probability, got {threshold}")
        if not 0 <= least <= 1:
            raise InputError(f"least is a probability, got {least}")
        self.depth = depth
        self.threshold = threshold
        self.least = least
        self.draw = draw
        self.promise = Promise(frozenset({draw}), depth + 1, depth, fixed_sibling_count=True)

    def smaller(self) -> Threshold:
        """Returns a copy of this policy with at most two levels, two children per node and four drafted nodes."""
        return Threshold(depth=min(self.depth, 2), threshold=self.threshold, least=self.least, draw=self.draw)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the chain below root [B], as deep as the longest row, with invalid nodes in shorter rows."""
        growth = Growth(root)
        forecast = Forecast(expand, growth)
        node = torch.zeros_like(root)[:, None]  # [B, 1]
        reached = torch.ones_like(root, dtype=torch.float64)[:, None]  # [B, 1], probability that all are accepted
        going = torch.ones_like(root, dtype=torch.bool)[:, None]
        parent_index: Tensor | None = None
        while growth.levels < self.depth and self._goes_on(going):
            logits, confidence = forecast.next_level(node, parent_index)  # [B, 1, V], [B, 1]
            if confidence is None:
                confidence = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).amax(-1)
            reached = reached * confidence
            if growth.levels:
                going = going & (1 - reached <= self.threshold)
                if not going.any():
                    break
            self._add(growth, logits, node, going, context)
            going = going & (confidence >= self.least)
            parent_index, node = torch.zeros_like(node), node + 1
        return growth.tree

    def _goes_on(self, going: Tensor) -> bool:
        """Returns whether any row is `going` [B, 1]; True, without a host sync, if no row can have stopped."""
        return not self.least or bool(going.any())

    def _add(self, growth: Growth, logits: Tensor, node: Tensor, going: Tensor, context: Context) -> None:
        """Appends a token below `node` in the rows that are `going`, all [B, 1]."""
        if self.draw is Draw.TOP:
            growth.add(logits.argmax(-1), node, valid=going)
            return
        law = context.sampling.law(logits, growth.tree, node)  # [B, 1, V]
        rows = torch.full_like(node, growth.record(law))
        growth.add(
            context.random.categorical(one_of(law, going.to(law.dtype))), node, self.draw, valid=going, q_rows=rows
        )
