"""Decoding equals the literal forward at every position: ragged batches, dropped rows, trees deeper than a group."""

from __future__ import annotations

import parallelspec_fakes as fakes
import parallelspec_reference as reference
import pytest
import torch

from specframe.testing import GivenSession, GrowingTree, check_drafter, check_plugin
from specframe_parallelspec.drafter import ParallelSpec

CLOSE = 1e-5
"""Weights are float64, but norms and rotary angles are float32 in transformers."""


@torch.no_grad()
def check(drafter: ParallelSpec, session: GivenSession, seed: int = 0) -> None:
    """Grows a ragged tree three expansions deep and compares all that is proposed with the reference."""
    tree, k = GrowingTree(session.root, fakes.VOCAB, seed), drafter.levels

    def compare(nodes: list[int]) -> None:
        logits = drafter.expand(tree.frontier(nodes)).logits
        assert logits.shape == (len(session.tokens), len(nodes), k, fakes.VOCAB)
        for row, features in enumerate(session.features):
            for place, node in enumerate(nodes):
                drafted = tree.tokens[row, tree.path(node)]
                wanted = drafter.logits(reference.path(drafter, features, session.tokens[row], drafted))
                torch.testing.assert_close(logits[row, place], wanted, rtol=CLOSE, atol=CLOSE)

    compare([0])
    first = [tree.descend(0, k) for _ in range(3)]
    compare(first[:2])
    compare([tree.descend(first[1], k), tree.descend(first[0], k)])
    compare([first[2], 0])  # a branch passed over before, and the root once more


@pytest.mark.parametrize("shape", fakes.SHAPES)
def test_ragged_batch_and_finished_rows(shape: dict[str, object]) -> None:
    drafter, session = fakes.bound(**shape), fakes.session(3)
    drafter.open(8, 64)
    drafter.commit(session.admit([5, 1, 3]))
    check(drafter, session)
    drafter.commit(session.advance([1, 3, 2], padding=2))
    check(drafter, session, 1)
    drafter.keep(session.keep([2, 1]))
    check(drafter, session)
    drafter.commit(session.advance([2, 4]))
    drafter.keep(session.keep([1]))  # before the pairs were ever used
    drafter.commit(session.advance([1]))  # two commits without a draft between
    check(drafter, session)


def test_open_starts_afresh_and_neither_drafts_nor_masks_leave_a_trace() -> None:
    busy, fresh = fakes.bound(masks=2), fakes.bound(masks=2)
    for seed, lengths in enumerate([[6], [2, 4]]):
        session = fakes.session(len(lengths), seed)
        committed = session.admit(lengths)
        for drafter in (busy, fresh):
            drafter.open(2, 20)
        busy.commit(committed)
        check(busy, session)  # drafts, and is rejected
        more = session.advance([2] * len(lengths))
        busy.commit(more)
        fresh.commit(committed)
        fresh.commit(more)
        root = GrowingTree(session.root, fakes.VOCAB).frontier([0])
        assert torch.equal(busy.expand(root).logits, busy.expand(root).logits)
        torch.testing.assert_close(busy.expand(root).logits, fresh.expand(root).logits)


@pytest.mark.parametrize("masks", range(1, 9))
def test_a_group_is_one_forward(masks: int) -> None:
    drafter, session = fakes.bound(masks=masks), fakes.session(1)
    widths: list[int] = []
    drafter.module.layer.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[1]))
    drafter.open(8, 64)
    drafter.commit(session.admit([4]))
    tree = GrowingTree(session.root, fakes.VOCAB)
    assert drafter.expand(tree.frontier([0])).logits.shape[2] == masks + 1
    assert widths == [4 + masks]  # what was committed, and the masks
    drafter.expand(tree.frontier([tree.descend(0, masks + 1)]))
    drafter.commit(session.advance([2]))
    drafter.expand(GrowingTree(session.root, fakes.VOCAB).frontier([0]))
    assert widths == [4 + masks, 2 * masks + 1, 2 + masks]  # the masks are never among what is remembered


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_other_precisions(dtype: torch.dtype, close: float) -> None:
    for shape in fakes.SHAPES[1:]:
        rough, exact = fakes.bound(dtype, **shape), fakes.bound(**shape)
        ours, theirs = fakes.session(2, dtype=dtype), fakes.session(2)
        for drafter, session in ((rough, ours), (exact, theirs)):
            drafter.open(2, 20)
            drafter.commit(session.admit([5, 3]))
            drafter.commit(session.advance([1, 2]))
        root = GrowingTree(ours.root, fakes.VOCAB).frontier([0])
        said, wanted = rough.expand(root).logits, exact.expand(root).logits
        assert said.dtype == dtype
        assert (said.double() - wanted).norm() < close * wanted.norm()


@pytest.mark.parametrize("options", [{"masks": 1}, {"features": False}])
def test_it_keeps_the_contract_of_drafters(options: dict[str, object]) -> None:
    check_drafter(lambda: ParallelSpec(**options))


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-parallelspec")
