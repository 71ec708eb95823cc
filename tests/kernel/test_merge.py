"""Two drafts in one tree by common prefix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specframe.components.drafters.trie import Trie, as_tree
from specframe.kernel.types import Draw, TokenTree
from tests.components.path_drafter import assert_sound, path
from tests.tiers import examples

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=4)
ROWS = st.lists(st.tuples(PATHS, PATHS), min_size=1, max_size=3)


def grown(rows: list[list[list[int]]]) -> TokenTree:
    """A `top` tree of these paths below root 9."""
    tries = [Trie(9) for _ in rows]
    for trie, paths in zip(tries, rows, strict=True):
        for tokens in paths:
            trie.add_path(tokens)
    return as_tree(torch.full((len(rows),), 9), tries)


def real_paths(tree: TokenTree, row: int) -> list[tuple[int, ...]]:
    return [path(tree, row, node) for node in range(tree.tokens.shape[1]) if tree.valid[row, node]]


@examples(2)
@given(rows=ROWS)
def test_a_merge_has_every_path_once(rows: list[tuple[list[list[int]], list[list[int]]]]) -> None:
    one, other = grown([a for a, _ in rows]), grown([b for _, b in rows])
    both = one.merge(other)
    assert_sound(both, max(one.levels, other.levels))
    width = one.tokens.shape[1]
    assert torch.equal(both.tokens[:, :width], one.tokens) and torch.equal(both.parent[:, :width], one.parent)
    for row in range(len(rows)):
        found = real_paths(both, row)
        assert len(set(found)) == len(found)
        assert set(found) == {*real_paths(one, row), *real_paths(other, row)}


@given(rows=ROWS, nodes=st.integers(1, 8))
def test_a_budget_keeps_the_first_new_nodes(rows: list[tuple[list[list[int]], list[list[int]]]], nodes: int) -> None:
    one, other = grown([a for a, _ in rows]), grown([b for _, b in rows])
    for row in range(len(rows)):
        before = real_paths(one, row)
        new = [found for found in real_paths(other, row) if found not in before]
        expected = [*before, *new[: max(0, nodes - len(before))]]
        assert sorted(real_paths(one.merge(other, nodes), row)) == sorted(expected)


def drawn(tokens: list[int], parent: list[int], draw: list[int], law: Tensor, levels: int = 1) -> TokenTree:
    """A tree of one row, its nodes drawn from the same law [1, 1, V]."""
    return TokenTree(
        tokens=torch.tensor([tokens]),
        parent=torch.tensor([parent]),
        valid=torch.ones(1, len(tokens), dtype=torch.bool),
        draw=torch.tensor([draw]),
        levels=levels,
        q=law,
        q_row=torch.zeros(1, len(tokens), dtype=torch.int64),
    )


def test_nothing_is_merged_into_a_sampled_node() -> None:
    law = torch.tensor([[[0.5, 0.5, 0.0]]])
    sampled = drawn([2, 0, 1], [-1, 0, 0], [0, Draw.IID, Draw.TOP], law)
    tries = [Trie(2)]
    tries[0].add_path([0, 1])
    tries[0].add_path([1, 1])
    both = sampled.merge(as_tree(torch.tensor([2]), tries))
    assert both.tokens.tolist() == [[2, 0, 1, 0, 1, 1]]
    assert both.parent.tolist() == [[-1, 0, 0, 0, 3, 2]]
    assert both.draw[0, 1:].tolist() == [Draw.IID, *[Draw.TOP] * 4]
    assert (
        both.q is law
        and both.q_row is not None
        and both.q_row.tolist() == [[0] * 6]
        and not both.q_row.is_floating_point()
    )
    with pytest.raises(ValueError, match="without sampled nodes"):
        both.merge(sampled)


CHAIN = st.lists(st.integers(0, 2), max_size=4)


@given(rows=st.lists(st.tuples(PATHS, CHAIN), min_size=1, max_size=3), nodes=st.integers(1, 12), data=st.data())
def test_a_chain_is_grafted_below_one_node(
    rows: list[tuple[list[list[int]], list[int]]], nodes: int, data: st.DataObject
) -> None:
    tree = grown([paths for paths, _ in rows])
    sizes: list[int] = tree.valid.sum(1).tolist()
    leaves = [data.draw(st.integers(0, size - 1)) for size in sizes]
    both = tree.graft(leaves, [chain for _, chain in rows], nodes)
    assert_sound(both, both.levels)
    for row, (leaf, (_, chain)) in enumerate(zip(leaves, rows, strict=True)):
        before = real_paths(tree, row)
        above = path(tree, row, leaf)
        missing = [found for end in range(len(chain)) if (found := (*above, *chain[: end + 1])) not in before]
        expected = [*before, *missing[: max(0, nodes - len(before))]]
        assert sorted(real_paths(both, row)) == sorted(expected)


def test_a_chain_below_a_sampled_node_is_top() -> None:
    sampled = drawn([1, 0, 0], [-1, 0, 1], [0, Draw.IID, Draw.IID], torch.tensor([[[0.5, 0.5]]]), levels=2)
    both = sampled.graft([2], [[1, 0]])
    assert both.parent.tolist() == [[-1, 0, 1, 2, 3]] and both.levels == 4
    assert both.draw[0, 1:].tolist() == [Draw.IID, Draw.IID, Draw.TOP, Draw.TOP]
