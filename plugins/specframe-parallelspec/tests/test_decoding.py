"""Decoding equals the literal forward at every position: ragged batches, dropped rows, trees deeper than a group."""

from __future__ import annotations

import parallelspec_fakes as fakes
import parallelspec_reference as reference
import pytest
import torch

from specframe.testing import GivenSession, GrowingTree, check_drafter, check_plugin, check_proposals
from specframe_parallelspec.drafter import ParallelSpec


@pytest.mark.parametrize("shape", fakes.SHAPES)
def test_proposals_are_the_literal_forwards(shape: dict[str, object]) -> None:
    drafter = fakes.bound(**shape)

    def wanted(session: GivenSession, row: int, path: torch.Tensor) -> torch.Tensor:
        return drafter.logits(reference.path(drafter, session.features[row], session.tokens[row], path))

    check_proposals(drafter, fakes.session, wanted, expansions=3)


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
        logits, wanted = rough.expand(root).logits, exact.expand(root).logits
        assert logits.dtype == dtype
        assert (logits.double() - wanted).norm() < close * wanted.norm()


@pytest.mark.parametrize("options", [{"masks": 1}, {"features": False}])
def test_it_keeps_the_contract_of_drafters(options: dict[str, object]) -> None:
    check_drafter(lambda: ParallelSpec(**options))


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-parallelspec")
