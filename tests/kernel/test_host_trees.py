"""Trees that were grown on the host: their tensors are those of a tree of tensors."""

import ctypes
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.kernel.transfer import HostTrees
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


@given(grown())
def test_a_host_tree_has_the_tensors_of_a_tree_of_tensors(columns):
    tree, wanted = TokenTree.of(HostTrees(torch.zeros(1).long(), *columns), levels=7), of_tensors(*columns)
    assert tree.shape == wanted.shape
    for name in FIELDS:
        found, expected = getattr(tree, name), getattr(wanted, name)
        assert found.dtype == expected.dtype and found.tolist() == expected.tolist(), name
    assert tree.columns == wanted.columns


@given(grown())
def test_native_code_reads_the_same_at_the_addresses(columns):
    source = HostTrees(torch.zeros(1).long(), *columns)
    for name, address in zip(("tokens", "depth", "ancestors", "parent", "valid"), source.addresses, strict=True):
        tensor = source.tensor(name)
        read = ctypes.string_at(address, tensor.numel() * tensor.itemsize)
        assert read == tensor.contiguous().numpy().tobytes(), name


def test_a_tensor_of_a_host_tree_is_a_copy():
    source = HostTrees(torch.zeros(1).long(), [[1, 2]], [[-1, 0]])
    source.tensor("tokens").zero_()
    source.tensor("valid").zero_()
    assert source.tensor("tokens").tolist() == [[1, 2]] and bool(source.tensor("valid").all())


def test_a_root_alone_on_the_host():
    tree = TokenTree.root_only(torch.tensor([4, 5]))
    assert (tree.tokens.tolist(), tree.parent.tolist(), tree.levels) == ([[4], [5]], [[-1], [-1]], 0)
    assert tree.ancestors.tolist() == [[[True]], [[True]]] and tree.depth.tolist() == [[0], [0]]
    assert TokenTree.root_only(torch.zeros(0).long()).tokens.shape == (0, 1)


def both_ways(columns):
    """The same trees, by a source and by tensors; equal siblings, which no draft has, are one."""
    unlike = [[9 * at + token % 9 for at, token in enumerate(row)] for row in columns[0]]
    source = HostTrees(torch.zeros(1).long(), unlike, columns[1])
    return TokenTree.of(source, levels=7), of_tensors(unlike, columns[1])


def check_equal(tree, wanted):
    assert tree.levels == wanted.levels and tree.source is not None and wanted.source is None
    for name in FIELDS:
        assert torch.equal(getattr(tree, name), getattr(wanted, name)), name


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
