"""DySpec: a sampled tree with a node budget, grown where a token is most likely to be reached and accepted."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Context, Draw, Expand, Forecast, Growth, Promise, RandomSource, TokenTree, one_of


class DySpec:
    """The `nodes` best child slots of a tree drawn without replacement (Xiong et al. 2024, DySpec).

    A slot's value is the drafter's estimate of the probability that the verifier reaches the slot: the probability of
    the path above it, times the mass of the node's law that the earlier siblings leave. It is known before the slot's
    token is drawn, and it decreases along every edge and from sibling to sibling. The best slots therefore form a tree,
    and whether a slot is among them does not depend on its token, so the draft remains exact. The paper draws slot by
    slot, with one forward pass of the drafter each. Here a level is drawn at a time, and slots that cannot be among the
    best are not drawn.

    The best `width` nodes of a level become the parents of the next, with at most `width` children each; with `width`
    equal to `nodes` this is no restriction. `nodes` does not count the root.

    Options:
        nodes: number of drafted tokens that the target scores, without the root
        depth: number of drafted levels
        width: parents per level, and children per parent
        threshold: slots of a smaller value are left out, and the tree is as wide as the batch's fullest row
    """

    def __init__(self, *, nodes: int = 16, depth: int = 4, width: int = 4, threshold: float = 0.0) -> None:
        if min(depth, width, nodes) < 1:
            raise InputError(
                f"a DySpec tree needs nodes, depth and width of at least 1, got {nodes}, {depth} and {width}"
            )
        if not 0 <= threshold < 1:
            raise InputError(f"a threshold is a probability below 1, got {threshold}")
        self.depth = depth
        self.width = width
        self.threshold = threshold
        self.budget = min(nodes, width + (depth - 1) * width**2)
        # Sibling counts are not fixed: whether a sibling is drawn may depend on the ones before it.
        self.promise = Promise(frozenset({Draw.WITHOUT_REPLACEMENT}), self.budget + 1, depth)

    def smaller(self) -> DySpec:
        """Returns a copy of this policy with at most two levels, two children per node and four drafted nodes."""
        most = (min(self.budget, 4), min(self.depth, 2), min(self.width, 2))
        return DySpec(nodes=most[0], depth=most[1], width=most[2], threshold=self.threshold)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the tree below root [B]: `nodes` nodes, invalid if fewer slots are worth a draw.

        As in `dynamic`, the growing tree contains only the parents. Slots are numbered in order of creation: level by
        level, earlier siblings first.
        """
        growth = Growth(root)
        forecast = Forecast(expand, growth)
        slots = SearchSlots(self.budget, self.threshold, len(root), root.device)
        beam = torch.zeros_like(root)[:, None]  # [B, W] nodes of the growing tree
        number = beam - 1  # [B, W] their slot numbers
        value = torch.ones_like(beam, dtype=torch.float64)  # [B, W] the law of the path to each
        parent_index: Tensor | None = None
        for _ in range(self.depth):
            logits, _ = forecast.next_level(beam, parent_index)
            law = context.sampling.law(logits, growth.tree, beam)  # [B, W, V]
            row = growth.record(law)
            tokens, values = slots.draw(law, value, number, row, self.width, context.random)  # [B, C], [B, C]
            if growth.levels + 1 == self.depth:
                break
            best = largest(values, self.width)  # [B, W']
            parent_index = best % beam.shape[1]
            value = values.gather(1, best)
            rows = parent_index + row
            valid = value > 0
            draw = Draw.WITHOUT_REPLACEMENT
            growth.add(tokens.gather(1, best), beam.gather(1, parent_index), draw, valid=valid, q_rows=rows)
            beam = torch.arange(growth.size - best.shape[1], growth.size, device=root.device).expand_as(best)
            number = best + slots.count - values.shape[1]
        laws = growth.tree.q
        assert laws is not None  # a level has been recorded
        return slots.tree(root, laws, self.depth)


class SearchSlots:
    """The slots of a search: those drawn, and their values."""

    def __init__(self, budget: int, threshold: float, batch: int, device: torch.device) -> None:
        self.budget = budget
        self.threshold = threshold
        self.count = 0
        """Number of slots so far, which is the number of the next one."""
        self._values = torch.zeros(batch, 0, dtype=torch.float64, device=device)  # [B, S]
        self._tokens: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._rows: list[Tensor] = []

    def draw(
        self, law: Tensor, value: Tensor, number: Tensor, row: int, width: int, random: RandomSource
    ) -> tuple[Tensor, Tensor]:
        """Draws a level of slots below parents; returns their tokens, and values of the paths to them, [B, width * W].

        law [B, W, V] is each parent's, recorded from `row` on; value [B, W] is the probability of the path to the
        parent, and number [B, W] its slot. A slot that is not drawn has value 0.
        """
        left = law.clone()  # [B, W, V] without the earlier siblings
        rest = left.sum(-1)  # [B, W]
        worth = value  # [B, W], value of the next sibling's slot
        tokens, values = [], []
        rows = (torch.arange(law.shape[1], device=law.device) + row).expand_as(number)
        for _ in range(min(width, law.shape[-1])):
            self._values = torch.cat([self._values, worth.where(worth >= self.threshold, 0)], 1)
            drawn = (worth > 0) & (worth >= self.threshold) & (worth >= self._bar())
            share = one_of(left, rest * drawn)  # [B, W, V]
            token = random.categorical(share)  # [B, W]
            chance = share.gather(2, token[..., None])[..., 0]
            left.scatter_(2, token[..., None], 0)
            rest = left.sum(-1)
            tokens.append(token.where(drawn, 0))
            values.append((worth * chance).where(drawn, 0))
            worth = (worth * (1 - chance)).where(drawn & (rest > 0), 0)
            self._parents.append(number)
            self._rows.append(rows)
        self._tokens += tokens
        self.count = self._values.shape[1]
        return torch.cat(tokens, 1), torch.cat(values, 1)

    def tree(self, root: Tensor, laws: Tensor, depth: int) -> TokenTree:
        """Returns the best slots as the draft below root [B]."""
        best = largest(self._values, self.budget)  # [B, n]
        real = self._values.gather(1, best) > 0
        # In order of drawing, siblings included; entries without a slot come last.
        chosen, order = (best + self.count * ~real).sort(1)
        real = real.gather(1, order)
        if self.threshold:
            most = int(real.sum(1).max())
            chosen, real = chosen[:, :most].contiguous(), real[:, :most]
        slot = chosen % self.count
        parent = torch.cat(self._parents, 1).gather(1, slot)
        tokens = torch.cat(self._tokens, 1).gather(1, slot)
        tokens = torch.cat([root[:, None], tokens.where(real, 0)], 1)
        pad = torch.nn.functional.pad
        return TokenTree(
            tokens=tokens,
            parent=pad(torch.searchsorted(chosen, parent, right=True), (1, 0), value=-1),
            valid=pad(real, (1, 0), value=True),
            draw=torch.full_like(tokens, Draw.WITHOUT_REPLACEMENT),
            levels=min(depth, self.budget),
            q=laws,
            q_row=pad(torch.cat(self._rows, 1).gather(1, slot), (1, 0)),
        )

    def _bar(self) -> Tensor:
        # Slots below this value cannot be among the best, whatever follows: [B, 1].
        if self._values.shape[1] <= self.budget:
            return self._values.new_zeros(len(self._values), 1)
        return self._values.topk(self.budget).values[:, -1:]


def largest(values: Tensor, count: int) -> Tensor:
    """Returns the indices of the largest values [B, n], best first; ties in order of index."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]
