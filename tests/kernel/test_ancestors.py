"""Which nodes of a tree see which: the host's way and native code's way are one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.kernel.tree import TokenTree, ancestors_of, ancestors_on_host, depth_of, depth_on_host

NODES = 7
PARENTS = st.tuples(st.just(-1), *(st.integers(-1, node - 1) for node in range(1, NODES)))
"""Padding may have no parent."""


@given(rows=st.lists(PARENTS, min_size=1, max_size=4))
def test_the_host_finds_what_native_code_finds(rows: list[tuple[int, ...]]) -> None:
    parent = torch.tensor(rows)
    seen = ancestors_of(parent, NODES)
    assert torch.equal(ancestors_on_host(parent), seen)
    assert torch.equal(depth_on_host(parent), depth_of(seen))


def test_a_node_sees_itself_and_what_is_above_it() -> None:
    tree = TokenTree(
        tokens=torch.tensor([[5, 6, 7, 8]]),
        parent=torch.tensor([[-1, 0, 0, 2]]),
        valid=torch.ones(1, 4, dtype=torch.bool),
        draw=torch.zeros(1, 4, dtype=torch.int64),
        levels=2,
    )
    assert depth_of(tree.ancestors).tolist() == [[0, 1, 1, 2]]
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert tree.ancestors[0].int().tolist() == expected and tree.depth.tolist() == [[0, 1, 1, 2]]


def test_no_rows_have_no_ancestors() -> None:
    none = torch.zeros(0, 3, dtype=torch.int64)
    assert TokenTree(none, none, none.bool(), none, levels=2).ancestors.shape == (0, 3, 3)


def test_rows_are_taken_with_their_recorded_laws() -> None:
    numbers = torch.tensor([[0, 1], [2, 3]])
    parent = torch.tensor([[-1, 0], [-1, 0]])
    top = TokenTree(numbers, parent, numbers >= 0, numbers, levels=1)
    drawn = TokenTree(numbers, parent, numbers >= 0, numbers, 1, torch.arange(8.0).view(2, 1, 4), numbers)
    rows = torch.tensor([1, 0, 1])
    assert top.take(rows).q is None and top.take(rows).q_row is None
    taken = drawn.take(rows)
    assert taken.q is not None and taken.q_row is not None and taken.levels == 1
    assert taken.q[:, 0, 0].tolist() == [4, 0, 4] and taken.q_row.tolist() == [[2, 3], [0, 1], [2, 3]]
    assert taken.tokens.tolist() == taken.draw.tolist() == [[2, 3], [0, 1], [2, 3]]
