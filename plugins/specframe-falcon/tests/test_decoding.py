"""Decoding says what training said: every draft forward equals one forward over the whole sequence."""

from __future__ import annotations

import falcon_fakes as fakes
import falcon_reference as reference
import pytest
import torch

from specframe.testing import GivenSession, GrowingTree
from specframe_falcon.drafter import Falcon

BLOCKS = [1, 2, 3]
CLOSE = 1e-5
"""Weights are float64, but norms and rotary angles are float32 in transformers."""


@torch.no_grad()
def check(drafter: Falcon, rows: GivenSession, seed: int = 0) -> None:
    """Grows a ragged tree four expansions deep and compares all that is proposed with the reference."""
    tree, k = GrowingTree(rows.root, fakes.VOCAB, seed), drafter.block

    def compare(nodes: list[int]) -> None:
        logits = drafter.expand(tree.frontier(nodes)).logits
        assert logits.shape == (len(rows.tokens), len(nodes), k, fakes.VOCAB)
        for row, features in enumerate(rows.features):
            for place, node in enumerate(nodes):
                drafted = tree.tokens[row, tree.path(node)]
                wanted = drafter.logits(reference.path(drafter, features, rows.tokens[row], drafted))
                torch.testing.assert_close(logits[row, place], wanted, rtol=CLOSE, atol=CLOSE)

    compare([0])
    first = [tree.descend(0, k) for _ in range(3)]
    compare(first)
    second = [tree.descend(node, k) for node in (first[2], first[0], first[2])]
    compare(second)
    compare([tree.descend(second[1], k), tree.descend(second[0], k)])
    compare([tree.descend(first[1], k), 0])  # a branch passed over before, and the root once more


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_unroll_is_the_literal_forward(block: int, length: int) -> None:
    drafter = fakes.bound(block)
    features, tokens = fakes.pairs(length)
    with torch.no_grad():
        predicted = drafter.unroll(features[None], tokens[None]).features[0, :, 0]
        for end in range(length, 0, -block):
            width = min(block, end)
            literal = reference.block(drafter, features[:end], tokens[:end])[-width:]
            torch.testing.assert_close(predicted[end - width : end], literal, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("block", BLOCKS)
def test_one_row(block: int) -> None:
    drafter, rows = fakes.bound(block), fakes.session(1)
    drafter.open(8, 64)
    drafter.commit(rows.admit([5]))
    check(drafter, rows)
    for cycle, count in enumerate([1, 3, 2, 1, 4]):
        drafter.commit(rows.advance([count], padding=cycle % 3))
        check(drafter, rows, cycle)


@pytest.mark.parametrize("block", BLOCKS)
def test_ragged_batch_and_finished_rows(block: int) -> None:
    drafter, rows = fakes.bound(block), fakes.session(4)
    drafter.open(8, 64)
    drafter.commit(rows.admit([5, 2, 9, 4]))
    check(drafter, rows)
    drafter.commit(rows.advance([1, 3, 2, 2]))
    check(drafter, rows)
    drafter.keep(rows.keep([3, 1, 0]))
    check(drafter, rows)
    drafter.commit(rows.advance([4, 1, 2], padding=1))
    check(drafter, rows)
    drafter.commit(rows.advance([2, 2, 2]))
    drafter.keep(rows.keep([1]))  # before the pairs were ever used
    drafter.commit(rows.advance([3]))
    drafter.commit(rows.advance([1]))  # two commits without a draft between
    check(drafter, rows)


@pytest.mark.parametrize("block", BLOCKS)
def test_rows_with_fewer_pairs_than_a_block(block: int) -> None:
    drafter, rows = fakes.bound(block), fakes.session(3)
    drafter.open(8, 64)
    drafter.commit(rows.admit([1, 1, 2]))
    check(drafter, rows)
    drafter.commit(rows.advance([1, 2, 1]))
    check(drafter, rows)
    drafter.commit(rows.advance([1, 1, 1]))
    check(drafter, rows)


def test_the_cache_grows_with_the_text() -> None:
    drafter, rows = fakes.bound(2), fakes.session(2)
    drafter.open(2, 3)
    drafter._session.spare = 1
    drafter.commit(rows.admit([2, 3]))
    check(drafter, rows)
    for _ in range(2):
        drafter.commit(rows.advance([40, 25]))
        check(drafter, rows)


@pytest.mark.parametrize("block", BLOCKS)
def test_drafting_leaves_nothing_behind(block: int) -> None:
    drafting, fresh = fakes.bound(block), fakes.bound(block)
    ours, theirs = fakes.session(2), fakes.session(2)
    for cycle, counts in enumerate([[4, 3], [1, 3], [2, 1]]):
        if cycle == 0:
            drafting.open(8, 64)
            fresh.open(8, 64)
        drafting.commit((ours.advance if cycle else ours.admit)(counts))
        fresh.commit((theirs.advance if cycle else theirs.admit)(counts))
        for seed in range(2):
            check(drafting, ours, seed)  # drafts, is rejected, drafts again
    root = GrowingTree(ours.root, fakes.VOCAB).frontier([0])
    assert torch.equal(drafting.expand(root).logits, drafting.expand(root).logits)
    torch.testing.assert_close(drafting.expand(root).logits, fresh.expand(root).logits)


def test_open_starts_afresh() -> None:
    drafter = fakes.bound(2)
    for seed, lengths in enumerate([[9], [2, 5], [1]]):
        rows = fakes.session(len(lengths), seed)
        drafter.open(8, 64)
        drafter.commit(rows.admit(lengths))
        check(drafter, rows)


def test_rows_do_not_see_each_other() -> None:
    together, alone = fakes.bound(2), fakes.bound(2)
    pair, single = fakes.session(2), fakes.session(2)
    single.admit([1])
    single.keep([])
    for cycle, (other, own) in enumerate([(9, 2), (1, 3), (4, 1)]):
        if cycle == 0:
            together.open(8, 64)
            alone.open(8, 64)
        together.commit((pair.advance if cycle else pair.admit)([other, own]))
        alone.commit((single.advance if cycle else single.admit)([own]))
        both = together.expand(GrowingTree(pair.root, fakes.VOCAB).frontier([0])).logits[1:]
        torch.testing.assert_close(both, alone.expand(GrowingTree(single.root, fakes.VOCAB).frontier([0])).logits)


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
    for nodes in ([0], [tree.add(tree.add(0)), tree.add(tree.add(0))]):
        ours = drafter.expand(tree.frontier(nodes)).logits
        theirs = exact.expand(tree.frontier(nodes)).logits
        assert ours.dtype == dtype
        assert (ours.double() - theirs).norm() < tolerance * theirs.norm()
