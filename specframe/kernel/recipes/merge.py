"""Two drafts of one root in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specframe.kernel.types import Draw, TokenTree

if TYPE_CHECKING:
    from torch import Tensor


def merge(tree: TokenTree, other: TokenTree, nodes: int | None = None) -> TokenTree:
    """The first tree with the nodes of the second (see `TokenTree.merge`)."""
    if (other.valid & (other.draw != Draw.TOP))[:, 1:].any():
        raise ValueError("only a tree without sampled nodes can be merged into another")
    width, levels = tree.tokens.shape[1], tree.levels
    fresh: list[list[tuple[int, int]]] = []  # the new nodes of each row, (token, parent)
    ours = (tree.tokens, tree.parent, tree.valid & (tree.draw == Draw.TOP), tree.depth)
    theirs = (other.tokens, other.parent, other.valid)
    sizes: list[int] = tree.valid.sum(1).tolist()
    columns = zip(*(part.tolist() for part in (*ours, *theirs)), sizes, strict=True)
    for tokens, parents, top, depths, their_tokens, their_parents, real, size in columns:
        known = {key: node for node, key in enumerate(zip(parents, tokens, strict=True)) if top[node]}
        place = {0: 0}  # their nodes among ours
        new: list[tuple[int, int]] = []
        for node, (token, parent) in enumerate(zip(their_tokens, their_parents, strict=True)):
            key = (place.get(parent, -1), token)
            if not real[node] or key[0] < 0:
                continue
            if key not in known and (nodes is None or size + len(new) < nodes):
                known[key] = width + len(new)
                new.append((token, key[0]))
                depths.append(depths[key[0]] + 1)
                levels = max(levels, depths[-1])
            if key in known:
                place[node] = known[key]
        fresh.append(new)
    return _grown(tree, fresh, levels)


def _grown(tree: TokenTree, fresh: Sequence[Sequence[tuple[int, int]]], levels: int) -> TokenTree:
    """This tree with new `top` nodes behind each row's, (token, parent), where rows with fewer end invalid."""
    width = max(map(len, fresh))
    padded = [[(*node, 1) for node in row] + [(0, 0, 0)] * (width - len(row)) for row in fresh]
    tokens, parent, valid = tree.tokens.new_tensor(padded).view(len(fresh), width, 3).unbind(-1)  # [B, new]
    draw = tokens * 0 + Draw.TOP

    def joined(old: Tensor, new: Tensor) -> Tensor:
        both = old.new_zeros(len(old), old.shape[1] + width)
        both[:, : old.shape[1]], both[:, old.shape[1] :] = old, new
        return both

    return TokenTree(
        tokens=joined(tree.tokens, tokens),
        parent=joined(tree.parent, parent),
        valid=joined(tree.valid, valid.bool()),
        draw=joined(tree.draw, draw),
        levels=levels,
        q=tree.q,
        q_row=None if tree.q_row is None else joined(tree.q_row, tokens * 0),
    )
