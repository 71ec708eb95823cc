"""Blocks of a draft: nodes found by the host are those that a search of all parts finds, bit for bit."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.neural.blocks import Blocks


def parts_of(batch: int, sizes: list[int], block: int, states: int, seed: int) -> list[Blocks]:
    """Parts of a draft: the root's, then those of `sizes` nodes, every row's nodes in an order of its own."""
    noise = torch.Generator().manual_seed(seed)
    parts, first, width = [], 0, 0
    for size in [1, *sizes]:
        nodes = torch.stack([first + torch.randperm(size, generator=noise) for _ in range(batch)])
        width += size if first else 0
        parts.append(
            Blocks(
                nodes,
                torch.randn(batch, size, block, 3, generator=noise),
                tuple(torch.randn(2, batch, size, 5, generator=noise) for _ in range(states)),
                torch.randint(0, 99, (batch, size), generator=noise),
                torch.rand(batch, size, width, generator=noise) < 0.5,
            )
        )
        first += size
    return parts


def same(found: Blocks, wanted: Blocks) -> None:
    """Asserts that two selections have equal tensors."""
    for field in fields(Blocks):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        pairs = zip(one, other, strict=True) if field.name == "state" else [(one, other)]
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs), field.name


@given(
    batch=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 4), max_size=3),
    block=st.integers(1, 3),
    states=st.integers(0, 2),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_nodes_come_from_the_part_that_has_them(batch, sizes, block, states, seed, data):
    parts = parts_of(batch, sizes, block, states, seed)
    newest = data.draw(st.booleans())
    first = int(parts[-1].nodes.min()) if newest else 0
    last = int(parts[-1].nodes.max())
    count = data.draw(st.integers(1, 5))
    nodes = torch.tensor([[data.draw(st.integers(first, last)) for _ in range(count)] for _ in range(batch)])
    same(Blocks.among(parts, nodes), Blocks.joined(parts).take(nodes))


def test_all_nodes_in_their_order_are_not_copied():
    parts = parts_of(2, [3], 1, 0, 0)
    assert Blocks.among(parts, parts[-1].nodes).outputs is parts[-1].outputs


@pytest.mark.parametrize("nodes", [[[1, 2], [1, 9]], [[0, 1], [1, 2]]])
def test_a_node_of_another_part_is_not_found(nodes):
    assert parts_of(2, [3], 1, 0, 0)[-1].places(torch.tensor(nodes)) is None
