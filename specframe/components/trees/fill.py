"""Fills the nodes of a given shape with tokens, for chains and fixed trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.components.trees.growth import Growth, one_of
from specframe.components.trees.shape import Level, Shape
from specframe.kernel.types import BeamSearch, Context, Draw, Expand, Frontier, Proposal, SearchBeam, TokenTree
from specframe.neural.transfer import tensor_on


def fill(
    shape: Shape,
    draw: Draw,
    expand: Expand,
    root: Tensor,
    context: Context,
    depth: Sequence[int] | None = None,
) -> TokenTree:
    """The tree of this shape below root [B], its nodes drawn by `draw` from the drafter's laws.

    A choice that does not exist (a rank beyond the vocabulary, a draw without replacement from an exhausted
    law) leaves an invalid node with invalid children, so that the shape stays complete.

    With `depth`, one number per row, a row gets only its first `depth` levels, and the tree as many as the deepest
    row; below, the nodes of other rows are invalid and nothing is sampled for them. A chain of the most probable tokens
    is a beam search of width 1: a drafter with a beam search builds it in one call.
    """
    if draw is Draw.TOP and shape.chain and context.search is not None:
        return _searched(context.search, [shape.depth] * len(root) if depth is None else depth, root)
    growth = Growth(root)
    levels = shape.levels(root.device)
    limit: Tensor | None = None  # [B], where rows differ
    if depth is not None:
        levels = levels[: max(depth)]
        if min(depth) < max(depth):
            limit = torch.tensor(depth, device=root.device)
    done = 0
    while done < len(levels):
        start = levels[done]
        frontier = start.parents.expand(len(root), -1)  # [B, F]
        proposal = expand(Frontier(growth.tree, frontier))
        if draw is not Draw.TOP and context.sampling.processors:  # they read logits of the whole vocabulary
            proposal = proposal.whole
        logits = proposal.logits  # [B, F, K, v]
        block = levels[done : done + logits.shape[2]]
        if draw is Draw.TOP:
            ranked = proposal.tokens(_best(logits[:, :, : len(block)], max(level.choices for level in block)))
        origin: Tensor | None = None  # [M] the frontier node above each parent; None: the parent itself
        for j, level in enumerate(block):
            if j:
                origin = level.grandparent if origin is None else origin.index_select(0, level.grandparent)
            going = None if limit is None else (limit > growth.levels)[:, None]  # [B, 1]
            if draw is Draw.TOP:
                _add_best(growth, level, ranked[:, :, j], origin, logits.shape[-1], going)
            else:
                level_logits = logits[:, :, j] if origin is None else logits[:, :, j].index_select(1, origin)
                _add_sampled(growth, level, replace(proposal, logits=level_logits), draw, context, going)
        done += len(block)
    return growth.tree


def _searched(search: SearchBeam, depth: Sequence[int], root: Tensor) -> TokenTree:
    """Chains of `depth` nodes per row below root [B], by the drafter's search; shorter ones end in invalid nodes."""
    deepest = max(depth)
    if deepest == 0:
        return TokenTree.root_only(root)
    tree, _ = search(BeamSearch(deepest, 1, deepest + 1), root)
    if min(depth) == deepest:
        return tree
    valid = tree.valid & (tree.depth <= tensor_on(root.device, depth)[:, None])
    return replace(tree, tokens=tree.tokens.masked_fill(~valid, 0), valid=valid)


def _best(logits: Tensor, count: int) -> Tensor:
    """The indices of the largest logits, best first, -1 beyond the vocabulary: [B, F, K, count]."""
    if count == 1:
        return logits.argmax(-1, keepdim=True)
    width = logits.shape[-1]
    best = logits.topk(min(count, width)).indices
    return best if count <= width else torch.nn.functional.pad(best, (0, count - width), value=-1)


def _add_best(
    growth: Growth, level: Level, ranked: Tensor, origin: Tensor | None, vocab: int, going: Tensor | None
) -> None:
    """Appends a level of top choices, ranked [B, F, R] per frontier node, to the rows marked in `going`."""
    source = level.slot if origin is None else origin.index_select(0, level.slot)  # [C]
    tokens = ranked.flatten(1).index_select(1, source * ranked.shape[-1] + level.rank)  # [B, C]
    valid = tokens >= 0 if level.choices > vocab else None
    growth.add(tokens, _parents(level, len(tokens)), valid=_both(valid, going, tokens))


def _add_sampled(
    growth: Growth,
    level: Level,
    proposal: Proposal,
    draw: Draw,
    context: Context,
    going: Tensor | None,
) -> None:
    """Appends draws from the laws of a level's parents, whose logits are [B, M, v], to the rows marked in `going`."""
    batch = len(proposal.logits)
    law = context.sampling.law(proposal.logits, growth.tree, level.parents.expand(batch, -1))  # [B, M, v]
    q_rows = (level.slot + growth.record(law, proposal.support)).expand(batch, -1)  # [B, C]
    if going is not None:
        law = one_of(law, going.expand(law.shape[:2]).to(law.dtype))
    if draw is Draw.IID:
        drawn, valid = context.random.categorical(law.index_select(1, level.slot)), None  # [B, C]
    else:
        groups = [
            context.random.without_replacement(law.index_select(1, places), count).flatten(1)
            for count, places in level.groups
        ]
        drawn = torch.cat(groups, 1).index_select(1, level.order)  # [B, C]
        valid = drawn >= 0 if level.choices > 1 else None
    growth.add(proposal.tokens(drawn), _parents(level, batch), draw, valid=_both(valid, going, drawn), q_rows=q_rows)


def _both(valid: Tensor | None, going: Tensor | None, like: Tensor) -> Tensor | None:
    """Logical and of both masks, in the shape of `like` [B, C]; None if neither is given."""
    if going is None:
        return valid
    return going.expand_as(like) if valid is None else valid & going


def _parents(level: Level, batch: int) -> Tensor:
    """The parent of each child of the level: [B, C]."""
    return level.parents.index_select(0, level.slot).expand(batch, -1)
