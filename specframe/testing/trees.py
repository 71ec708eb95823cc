"""Checks that hold for every draft."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.types import Draw, TokenTree


def check_shape(tree: TokenTree, *, vocab: int, nodes: int | None, draws: frozenset[Draw] | None) -> None:
    """Raises AssertionError unless the tree keeps the contract of TokenTree and its declared promise."""
    batch, count = tree.tokens.shape
    own = torch.arange(count)
    parents = tree.parent[:, 1:]
    real = tree.valid[:, 1:]
    assert tree.parent.shape == tree.valid.shape == tree.draw.shape == (batch, count), "fields of different shapes"
    assert bool((tree.parent[:, 0] == -1).all()), "the root's parent must be -1"
    assert bool(tree.valid[:, 0].all()), "the root must be valid"
    assert bool(((parents >= 0) & (parents < own[1:])).all()), "a parent must come before its child"
    parent_valid = tree.valid.gather(1, parents.clamp(min=0))
    assert bool((parent_valid | ~real).all()), "a valid node stands below an invalid one"
    assert bool(((tree.tokens >= 0) & (tree.tokens < vocab)).all()), "a token outside the vocabulary"
    depth = _depths(tree)
    assert int(depth.max()) <= tree.levels, f"a node lies at depth {int(depth.max())}, but levels is {tree.levels}"
    if nodes is not None:
        assert count <= nodes, f"{count} nodes, but {nodes} were declared to be the most"
    used = {Draw(draw) for draw in tree.draw[:, 1:][real].tolist()}
    if draws is not None:
        assert used <= draws, f"nodes drawn {_names(used - draws)}, but declared are {_names(draws)}"
    if used - {Draw.TOP}:
        assert tree.q is not None and tree.q_row is not None, "sampled nodes need q and q_row"
        mass = tree.q.double().sum(-1)
        assert bool(((mass - 1).abs() < 1e-5).all()), "a row of q is no distribution"
        assert bool((tree.q >= 0).all()), "a row of q has negative entries"
        inside = (tree.q_row >= 0) & (tree.q_row < tree.q.shape[1])
        assert bool((inside | ~tree.valid | (tree.draw == Draw.TOP) | (own == 0)).all()), "q_row points outside of q"


def same_draft(a: TokenTree, row: int, b: TokenTree, other: int) -> bool:
    """Returns whether two rows hold the same draft, whatever padding they come with."""
    return _nodes(a, row) == _nodes(b, other)


def pad(tree: TokenTree, count: int) -> TokenTree:
    """The tree with `count` invalid nodes more."""
    batch = len(tree.tokens)

    def more(field: Tensor, value: int) -> Tensor:
        return torch.cat([field, field.new_full((batch, count), value)], 1)

    return TokenTree(
        tokens=more(tree.tokens, 0),
        parent=more(tree.parent, 0),
        valid=more(tree.valid, 0),
        draw=more(tree.draw, 0),
        levels=max(tree.levels, 1),
        q=tree.q,
        q_row=None if tree.q_row is None else more(tree.q_row, 0),
        support=tree.support,
    )


def _nodes(tree: TokenTree, row: int) -> list[tuple[int, ...]]:
    """The valid nodes as (path of tokens, rank among siblings, draw), in index order."""
    found: list[tuple[int, ...]] = []
    paths: dict[int, tuple[int, ...]] = {}
    columns = (field[row].tolist() for field in (tree.tokens, tree.parent, tree.valid, tree.draw))
    for index, (token, parent, valid, draw) in enumerate(zip(*columns, strict=True)):
        paths[index] = (*paths.get(parent, ()), token)
        if valid:
            found.append((*paths[index], -1, draw if index else 0))
    return found


def _depths(tree: TokenTree) -> Tensor:
    """Depths [B, N], padding included, without trusting `levels`."""
    depth = torch.zeros_like(tree.parent)
    for node in range(1, tree.parent.shape[1]):
        parent = tree.parent[:, node, None].clamp(min=0)
        depth[:, node] = depth.gather(1, parent)[:, 0] + 1
    return depth


def _names(draws: frozenset[Draw] | set[Draw]) -> str:
    return ", ".join(draw.name.lower() for draw in sorted(draws)) or "none"
