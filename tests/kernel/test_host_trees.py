"""Trees of rows of numbers: their fields are those of a tree of tensors."""

import pickle
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.kernel.types import Draw, TokenTree

FIELDS = ("tokens", "parent", "valid", "draw", "depth", "ancestors")


@st.composite
def grown(draw):
    """Tokens and parents of one to three rows of one to seven nodes."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 7))
        tokens = draw(st.lists(st.integers(0, 99), min_size=size, max_size=size))
        parents = [-1, *(draw(st.integers(0, node)) for node in range(size - 1))]
        rows.append((tokens, parents))
    return [list(column) for column in zip(*rows, strict=True)]


def of_tensors(tokens, parents):
    """The same trees as tensors; shorter rows end in invalid nodes below the root."""
    width = max(map(len, tokens))
    padded = [
        torch.tensor([row + [0] * (width - len(row)) for row in rows])
        for rows in (tokens, parents, [[1] * len(row) for row in tokens])
    ]
    return TokenTree(*padded[:2], padded[2].bool(), torch.full_like(padded[0], Draw.TOP), levels=width)


def of_rows(columns):
    return TokenTree.of_rows(torch.zeros(1).long(), *columns, levels=7)


def check_fields(tree, wanted):
    for name in FIELDS:
        found, expected = getattr(tree, name), getattr(wanted, name)
        assert found.dtype == expected.dtype and torch.equal(found, expected), name


@given(grown())
def test_a_tree_of_rows_has_the_fields_of_a_tree_of_tensors(columns):
    tree, wanted = of_rows(columns), of_tensors(*columns)
    assert tree.shape == wanted.shape and tree.columns == wanted.columns
    check_fields(tree, wanted)


@given(grown())
def test_packing_replacing_and_pickling_keep_every_field(columns):
    tree, q = of_rows(columns), torch.rand(len(columns[0]), 1, 3)
    packed = tree.packed
    assert packed.shape == (5, *tree.shape) and packed.dtype == torch.int64
    check_fields(TokenTree.unpack(packed, 7), tree)
    check_fields(pickle.loads(pickle.dumps(tree)), tree)
    sampled = replace(tree, q=q, q_row=tree.parent.clamp(min=0))
    check_fields(sampled, tree)
    again = TokenTree.unpack(sampled.packed, 7, q)
    assert tree.q_row is None and torch.equal(again.q_row, sampled.q_row) and again.q is q
    other = replace(tree, tokens=tree.tokens + 1)
    assert other.columns == (*tree.columns[:2], other.tokens.tolist()) and "tokens=tensor(" in repr(other)


def test_the_fields_are_views_of_one_tensor():
    packed = torch.tensor([[[4, 5]], [[-1, 0]], [[1, 1]], [[0, 0]], [[0, 0]]])
    tree = TokenTree.unpack(packed, levels=1)
    packed[0, 0, 1] = 7
    assert tree.tokens.tolist() == [[4, 7]]


def test_a_root_alone_on_the_host():
    tree = TokenTree.root_only(torch.tensor([4, 5]))
    assert (tree.tokens.tolist(), tree.parent.tolist(), tree.levels) == ([[4], [5]], [[-1], [-1]], 0)
    assert tree.ancestors.tolist() == [[[True]], [[True]]] and tree.depth.tolist() == [[0], [0]]
    assert TokenTree.root_only(torch.zeros(0).long()).tokens.shape == (0, 1)


def both_ways(columns):
    """Trees of rows and of tensors, without equal siblings, which no draft has."""
    unlike = [[9 * at + token % 9 for at, token in enumerate(row)] for row in columns[0]]
    return of_rows((unlike, columns[1])), of_tensors(unlike, columns[1])


def check_equal(tree, wanted):
    assert tree.levels == wanted.levels
    check_fields(tree, wanted)


@given(grown(), grown(), st.sampled_from([None, 1, 4, 9]))
def test_trees_merge_on_the_host_as_their_tensors_do(columns, others, nodes):
    rows = min(len(columns[0]), len(others[0]))
    one, other = (both_ways([part[:rows] for part in each]) for each in (columns, others))
    merged, wanted = one[0].merge(other[0], nodes), one[1].merge(other[1], nodes)
    assert torch.equal(merged.tokens, wanted.tokens)
    if merged is not one[0]:
        check_equal(merged, replace(wanted, levels=merged.levels))
        check_equal(merged.merge(other[0]), replace(wanted.merge(other[1]), levels=merged.levels))


@given(grown(), st.lists(st.integers(0, 40), max_size=3))
def test_trees_are_grafted_on_the_host_as_their_tensors_are(columns, chain):
    tree, wanted = both_ways(columns)
    rows = len(columns[0])
    grafted = tree.graft([0] * rows, [chain] * rows)
    if grafted is not tree:
        check_equal(grafted, replace(wanted.graft([0] * rows, [chain] * rows), levels=grafted.levels))
