"""A draft with more nodes: those of another draft of its root, or a chain behind one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from sys import maxsize
from typing import TYPE_CHECKING

from specframe.kernel.tree import Draw, TokenTree

if TYPE_CHECKING:
    from torch import Tensor


def merge(tree: TokenTree, other: TokenTree, nodes: int | None = None) -> TokenTree:
    """The first tree with the nodes of the second (see `TokenTree.merge`)."""
    if (other.valid & (other.draw != Draw.TOP))[:, 1:].any():
        raise ValueError("only a tree without sampled nodes can be merged into another")
    rows = _rows(tree, nodes)
    theirs = (part.tolist() for part in (other.tokens, other.parent, other.valid))
    for row, tokens, parents, real in zip(rows, *theirs, strict=True):
        place: dict[int, int | None] = {0: 0}  # their nodes among ours
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            above = place.get(parent)
            if real[node] and above is not None:
                place[node] = row.add(above, token)
    return _grown(tree, rows)


def graft(
    tree: TokenTree, leaves: Sequence[int], chains: Sequence[Sequence[int]], nodes: int | None = None
) -> TokenTree:
    """The tree with a chain of `top` nodes below a node of each row (see `TokenTree.graft`)."""
    rows = _rows(tree, nodes)
    for row, leaf, chain in zip(rows, leaves, chains, strict=True):
        node: int | None = leaf
        for token in chain:
            node = None if node is None else row.add(node, token)
    return _grown(tree, rows)


class _Row:
    """One row of a tree, as nodes are added to it on the host."""

    def __init__(self, known: dict[tuple[int, int], int], depths: list[int], most: int) -> None:
        self._known = known  # (parent, token) -> the `top` node that is there
        self._most = most
        self.depths = depths
        self.width = len(depths)
        self.new: list[tuple[int, int]] = []  # the nodes that were added, (token, parent)

    def add(self, parent: int, token: int) -> int | None:
        """The node's `top` child with this token, which is made where it is missing; None where there is no room."""
        found = self._known.get((parent, token))
        if found is None and len(self.new) < self._most:
            found = self._known[parent, token] = self.width + len(self.new)
            self.new.append((token, parent))
            self.depths.append(self.depths[parent] + 1)
        return found


def _rows(tree: TokenTree, nodes: int | None) -> list[_Row]:
    """A tree's rows, each with room for as many nodes as it then has at most `nodes` valid ones."""
    top = tree.valid & (tree.draw == Draw.TOP)
    sizes: list[int] = tree.valid.sum(1).tolist()
    columns = zip(*(part.tolist() for part in (tree.tokens, tree.parent, top, tree.depth)), sizes, strict=True)
    rows = []
    for tokens, parents, real, depths, size in columns:
        known = {key: node for node, key in enumerate(zip(parents, tokens, strict=True)) if real[node]}
        rows.append(_Row(known, depths, maxsize if nodes is None else nodes - size))
    return rows


def _grown(tree: TokenTree, rows: Sequence[_Row]) -> TokenTree:
    """This tree with the new nodes behind each row's, where rows with fewer end invalid."""
    fresh = [row.new for row in rows]
    width = max(map(len, fresh), default=0)
    if not width:
        return tree
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
        levels=max(tree.levels, *(depth for row in rows for depth in row.depths)),
        q=tree.q,
        q_row=None if tree.q_row is None else joined(tree.q_row, tokens * 0),
    )
