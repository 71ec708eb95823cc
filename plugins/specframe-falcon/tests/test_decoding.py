"""Decoding gives what training gave: every draft forward equals one forward over the whole sequence."""

from __future__ import annotations

import falcon_fakes as fakes
import falcon_reference as reference
import pytest
import torch

from specframe.testing import GivenSession, GrowingTree, check_proposals

NETWORKS = [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 3)]
"""Levels of a block, and decoder layers."""
CLOSE = 1e-5
"""Weights are float64, but norms and rotary angles are float32 in transformers."""


@pytest.mark.parametrize(("block", "layers"), NETWORKS)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_unroll_is_the_literal_forward(block: int, layers: int, length: int) -> None:
    drafter = fakes.bound(block, layers=layers)
    features, tokens = fakes.pairs(length)
    with torch.no_grad():
        predicted = drafter.unroll(features[None], tokens[None]).features[0, :, 0]
        for end in range(length, 0, -block):
            width = min(block, end)
            literal = reference.block(drafter, features[:end], tokens[:end])[-width:]
            torch.testing.assert_close(predicted[end - width : end], literal, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(("block", "layers"), NETWORKS)
def test_proposals_are_the_literal_forwards(block: int, layers: int) -> None:
    drafter = fakes.bound(block, layers=layers)

    def wanted(session: GivenSession, row: int, path: torch.Tensor) -> torch.Tensor:
        return drafter.logits(reference.path(drafter, session.features[row], session.tokens[row], path))

    check_proposals(drafter, fakes.session, wanted)


@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_ragged_rows_of_few_pairs_draft_as_the_literal_forward_does(block: int) -> None:
    """Rows shorter than a block have queries without a pair; after the first layer their position matters."""
    drafter, rows = fakes.bound(block, layers=2), fakes.session(7)
    drafter.open(7, 64)
    drafter.commit(rows.admit([*range(1, 8)]))
    for _ in range(2):
        tree = GrowingTree(rows.root, fakes.VOCAB)
        for step in range(2):
            node = tree.descend(0, block) if step else 0
            logits = drafter.expand(tree.frontier([node])).logits
            for row in range(7):
                path = tree.tokens[row, tree.path(node)]
                literal = reference.path(drafter, rows.features[row], rows.tokens[row], path)
                torch.testing.assert_close(logits[row, 0], drafter.logits(literal), rtol=CLOSE, atol=CLOSE)
        drafter.commit(rows.advance([1, 2, 1, 4, 3, 1, 2]))


def test_the_cache_grows_with_the_text() -> None:
    drafter, rows = fakes.bound(2), fakes.session(2)
    drafter.open(2, 3)
    drafter._session.spare = 1
    drafter.commit(rows.admit([2, 3]))
    for _ in range(2):
        drafter.commit(rows.advance([40, 25]))
        logits = drafter.expand(GrowingTree(rows.root, fakes.VOCAB).frontier([0])).logits
        for row in range(2):
            literal = reference.path(drafter, rows.features[row], rows.tokens[row], rows.root[:0])
            torch.testing.assert_close(logits[row, 0], drafter.logits(literal), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    drafter, rows = fakes.bound(2, dtype), fakes.session(2, dtype=dtype)
    exact, wanted = fakes.bound(2), fakes.session(2)
    for cycle, counts in enumerate([[5, 3], [1, 2]]):
        if cycle == 0:
            drafter.open(8, 64)
            exact.open(8, 64)
        drafter.commit((rows.advance if cycle else rows.admit)(counts))
        exact.commit((wanted.advance if cycle else wanted.admit)(counts))
    tree = GrowingTree(rows.root, fakes.VOCAB)
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    for step in range(2):
        nodes = [tree.add(tree.add(0)), tree.add(tree.add(0))] if step else [0]
        ours = drafter.expand(tree.frontier(nodes)).logits
        theirs = exact.expand(tree.frontier(nodes)).logits
        assert ours.dtype == dtype
        assert (ours.double() - theirs).norm() < tolerance * theirs.norm()
