"""Memory of recurrent layers: windows and states follow accepted paths, and rows come, move and leave."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.kernel.errors import CompositionError
from specframe.kernel.types import TokenTree
from specframe.native.visibility import Causal, Mask, Tree
from specframe.neural.recurrent import Ancestry, HybridCache, RecurrentStates
from specframe.neural.slot_map import SlotMap


@st.composite
def parents(draw):
    """The parents of one to three trees of as many nodes, at most nine."""
    nodes = draw(st.integers(1, 9))
    rows = draw(st.integers(1, 3))
    return [[-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))] for _ in range(rows)]


def tree_of(parent: list[list[int]]) -> TokenTree:
    given = torch.tensor(parent)
    depth = [0] * given.shape[1]
    for row in parent:
        own = [0] * len(row)
        for node in range(1, len(row)):
            own[node] = own[row[node]] + 1
        depth = [max(pair) for pair in zip(depth, own, strict=True)]
    return TokenTree(given.clone(), given, given > -2, torch.zeros_like(given), levels=max(depth))


def path_of(row: list[int], node: int) -> list[int]:
    path = [node]
    while path[0] > 0:
        path.insert(0, row[path[0]])
    return path


@given(parents(), st.integers(2, 5))
def test_every_node_knows_its_path_and_the_inputs_on_it(parent, width):
    paths = Ancestry(tree_of(parent).ancestors)
    windows = paths.windows(width)
    for row, above in enumerate(parent):
        for node in range(len(above)):
            path = path_of(above, node)
            assert paths.nodes_by_depth[row, node, : len(path)].tolist() == path
            assert int(paths.depth[row, node]) == len(path) - 1
            inputs = [*range(width - 1), *(width - 1 + on for on in path)]
            assert windows[row, node].tolist() == inputs[-width:]


@given(parents(), st.integers(2, 4), st.data())
def test_a_commit_moves_the_window_along_the_accepted_path(parent, width, data):
    states = RecurrentStates(len(parent) + 1)
    lengths = [data.draw(st.integers(1, 4)) for _ in parent]
    texts = torch.arange(len(parent) * max(lengths)).view(len(parent), 1, -1).double() + 1
    states.aim(Causal(0, lengths), 0)
    states.widen(0, texts, width)
    tree = tree_of(parent)
    drafted = -torch.arange(tree.tokens.numel()).view(len(parent), 1, -1).double() - 1
    states.aim(Tree(tree.ancestors, torch.tensor(lengths), max(lengths)), 0)
    wide = states.widen(0, drafted, width)
    taken = [path_of(row, data.draw(st.integers(0, len(row) - 1))) for row in parent]
    states.commit(taken)
    for row, path in enumerate(taken):
        before = [0.0] * (width - 1) + texts[row, 0, : lengths[row]].tolist()
        assert wide[row, 0, : width - 1].tolist() == before[-(width - 1) :], "the tree's inputs follow the text"
        after = before + [float(drafted[row, 0, node]) for node in path]
        assert states.layer(0).windows[0][row, 0].tolist() == after[-(width - 1) :]
    assert not states.layer(0).inputs, "nothing is pending after a commit"


def test_rows_move_and_are_copied_with_all_that_is_theirs():
    cache = HybridCache(2, 4, 3)
    cache.states.aim(Causal(0, [2, 2, 2]), 0)
    cache.states.widen(1, torch.arange(6.0).view(3, 1, 2), 3)
    cache.states.put(1, torch.tensor([[10.0], [20.0], [30.0]]))
    cache.copy_row(2, 0, 2)
    cache.keep(torch.tensor([1, 0]))
    layer = cache.states.layer(1)
    assert layer.state is not None and layer.state[:2, 0].tolist() == [20.0, 30.0]
    assert layer.windows[0][:2, 0].tolist() == [[2.0, 3.0], [4.0, 5.0]]
    cache.clear()
    assert not layer.state.any() and not layer.windows[0].any()


def test_a_text_begins_with_nothing_whatever_its_row_held():
    states = RecurrentStates(1)
    for text in ([[[1.0, 2.0, 3.0]]], [[[4.0]]]):
        states.aim(Causal(0, [len(text[0][0])]), 0)
        wide = states.widen(0, torch.tensor(text), 3)
        assert wide[0, 0].tolist() == [0.0, 0.0, *text[0][0]]
        assert states.before(0, 1) is None
        states.put(0, torch.ones(1, 2))
    states.aim(Causal(1, [1]), 0)
    assert states.widen(0, torch.tensor([[[5.0]]]), 3)[0, 0].tolist() == [0.0, 4.0, 5.0]
    assert torch.equal(states.before(0, 1), torch.ones(1, 2))


def test_nothing_of_a_recurrent_memory_can_be_dropped():
    rows = SlotMap(HybridCache(1, 4, 1), rooted=False)
    rows.join(torch.tensor([3]), [3])
    with pytest.raises(CompositionError, match="none can be dropped"):
        rows.before(1)
    nodes = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(CompositionError, match="whole trees, not some nodes"):
        rows.memory.aim_at(Mask(torch.ones(1, 1, 4, dtype=torch.bool), nodes), 0)
