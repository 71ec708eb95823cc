"""RSD-S: a stochastic beam search; siblings are drawn without replacement across the whole level."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Context, Draw, Expand, Forecast, Growth, Promise, RandomSource, TokenTree, one_of


class Beam:
    """A tree of the first `width` paths of every level, drawn without replacement (Jeon et al. 2024, RSD-S).

    The paths to a level are drawn one after the other from the drafter's law of whole paths, without repetition, and
    consistently between levels: the prefix of a kept path was kept on the level above. This is stochastic beam search
    (Kool et al. 2019), whose perturbed scores only encode the order of these draws; paths after the `width`-th are
    never grown. The number of a node's children is random, but their tokens depend on the node's law alone: they are
    drawn from it without replacement, and siblings are in the order of drawing.

    Needs a temperature above 0: at 0 there is only one path to draw, and the rest of the tree is padding.

    Options:
        width: paths per level
        depth: number of drafted levels
    """

    def __init__(self, *, width: int = 4, depth: int = 4) -> None:
        if min(width, depth) < 1:
            raise InputError(f"a beam needs a width and a depth of at least 1, got {width} and {depth}")
        self.width = width
        self.depth = depth
        # Sibling counts are not fixed: whether a sibling is drawn may depend on the ones before it.
        self.promise = Promise(frozenset({Draw.WITHOUT_REPLACEMENT}), width * depth + 1, depth)

    def smaller(self) -> Beam:
        """Returns a copy of this policy with at most two levels, two children per node and four drafted nodes."""
        return Beam(width=min(self.width, 2), depth=min(self.depth, 2))

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the tree below root [B]: always `nodes` nodes, invalid if a level has fewer than `width` paths."""
        growth = Growth(root)
        forecast = Forecast(expand, growth)
        beam = torch.zeros_like(root)[:, None]  # [B, W], in the order of drawing
        mass = torch.ones_like(beam, dtype=torch.float64)  # [B, W], the law of the path to each
        parent_index: Tensor | None = None
        while growth.levels < self.depth:
            logits, _ = forecast.next_level(beam, parent_index)
            law = context.sampling.law(logits, growth.tree, beam)  # [B, W, V]
            row = growth.record(law)
            parent_index, tokens, mass = draw_level(law, mass, self.width, context.random)
            draw = Draw.WITHOUT_REPLACEMENT
            growth.add(tokens, beam.gather(1, parent_index), draw, valid=tokens >= 0, q_rows=parent_index + row)
            beam = torch.arange(growth.size - self.width, growth.size, device=root.device).expand_as(tokens)
        return growth.tree


def draw_level(law: Tensor, mass: Tensor, count: int, random: RandomSource) -> tuple[Tensor, Tensor, Tensor]:
    """Draws the first `count` paths of a level, given those of the level above: parents, tokens, masses [B, count].

    law [B, W, V] is the law below each path of the level above, mass [B, W] the probability of these paths, in the
    order in which they were drawn. A parent is an index into that order; the token -1 means that no path is left.

    A path is drawn from the remaining mass of all paths. It is either below a parent that already has children, with
    that parent's remaining mass, or below a new one. The order of new parents was determined when the level above was
    drawn, by exactly the law that is needed here.
    """
    batch, parents, _ = law.shape
    rows = torch.arange(batch, device=law.device)
    place = torch.arange(parents, device=law.device)
    left = law.clone()  # [B, W, V] without the children already drawn
    rest = left.sum(-1)  # [B, W]
    started = torch.zeros_like(mass)  # [B, W] the mass of parents with children, 0 for others
    # Mass of all parents from the next new one on, including those beyond the beam: [B, W] by the next.
    fresh = torch.maximum(1 - (mass.cumsum(1) - mass), mass).masked_fill(mass <= 0, 0)
    new = torch.zeros_like(rows)  # [B] index of the next new parent
    parent_indices, tokens, masses = [], [], []
    for _ in range(count):
        weights = started * rest + fresh * (place == new[:, None])
        total = weights.sum(1)  # [B]
        alive = total > 0
        parent = random.categorical(one_of(weights, total))  # [B]
        token = random.categorical(one_of(left[rows, parent], rest[rows, parent] * alive))
        left[rows, parent, token] = 0
        rest[rows, parent] = left[rows, parent].sum(-1)
        started[rows, parent] = mass[rows, parent]
        new = new + (parent == new)
        parent_indices.append(parent)
        tokens.append(token.where(alive, -1))
        masses.append((mass[rows, parent] * law[rows, parent, token]).where(alive, 0))
    return torch.stack(parent_indices, 1), torch.stack(tokens, 1), torch.stack(masses, 1)
