"""Threshold against its slow restatement, audited, and certified in single cycles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Draw, Proposal
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter, check_tree
from specframe_models.specdecpp.threshold import Threshold
from tests.components.path_drafter import Keyed, PathDrafter, assert_lossless_cycles, assert_sound, draw, path

WARM = Sampling(temperature=1.0)
ROOTS = torch.tensor([1, 0, 1])
SMALL = {
    "threshold": lambda: Threshold(depth=3, threshold=0.6, draw=Draw.IID),
    "threshold, top": lambda: Threshold(depth=3, threshold=0.6),
    "threshold, least": lambda: Threshold(depth=3, threshold=1.0, least=0.45, draw=Draw.IID),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", SMALL)
def test_it_keeps_its_contract_and_one_cycle_is_lossless(name: str) -> None:
    check_tree(SMALL[name])
    for verifier in (Recursive, Traversal, Match):
        assert_lossless_cycles(SMALL[name], verifier)


@given(
    depth=st.integers(1, 6),
    block=st.integers(1, 3),
    salt=st.integers(0, 999),
    threshold=st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]),
    least=st.sampled_from([0.0, 0.3, 0.45, 1.0]),
    drawn=st.sampled_from([Draw.TOP, Draw.IID]),
    confident_drafter=st.booleans(),
)
def test_threshold_is_its_literal_restatement(
    depth: int, block: int, salt: int, threshold: float, least: float, drawn: Draw, confident_drafter: bool
) -> None:
    drafter = PathDrafter(5, block, salt)

    def confident(logits: Tensor) -> Tensor:
        return logits.sigmoid().amin(-1) ** 0.2

    def expand(frontier: object) -> Proposal:
        logits = drafter.expand(frontier).logits  # type: ignore[arg-type]
        return Proposal(logits, confident(logits) if confident_drafter else None)

    policy = Threshold(depth=depth, threshold=threshold, least=least, draw=drawn)
    tree = policy.grow(expand, ROOTS, Context(WARM, Keyed(salt)))
    assert_sound(tree, tree.levels)
    lengths, asked = [], []
    for row, root in enumerate(ROOTS.tolist()):
        line, reached, levels = (root,), 1.0, 0
        while len(line) <= depth:
            logits = drafter.at(line)
            levels += 1
            sure = float(confident(logits)) if confident_drafter else float(logits.softmax(-1).max())
            reached *= sure
            if len(line) > 1 and 1 - reached > threshold:
                break
            law = logits.softmax(-1).tolist()
            line = (*line, int(logits.argmax()) if drawn is Draw.TOP else draw(Keyed(salt), law))
            if sure < least:  # the unsure token is drafted, and nothing below it
                break
        kept = int(tree.valid[row].sum())
        assert path(tree, row, kept - 1) == line
        asked.append(levels)
        lengths.append(kept - 1)
    assert tree.levels == max(lengths), "the longest row decides"
    assert drafter.calls == -(-max(asked) // block), "no forward once all rows have stopped"


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_threshold_goes_on_while_a_rejection_is_ruled_out(threshold: float) -> None:
    sure = GivenDrafter(torch.eye(5, dtype=torch.float64))
    tree = Threshold(depth=3, threshold=threshold).grow(sure.expand, ROOTS, Context(WARM, Keyed(0)))
    assert tree.levels == 3 and bool(tree.valid.all()), "a chance of exactly 0 is at most any threshold"
    assert Threshold(depth=1, threshold=threshold).promise.nodes == 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Threshold(depth=0), "at least 1"),
        (lambda: Threshold(threshold=1.5), "probability"),
        (lambda: Threshold(least=1.5), "least is a probability"),
    ],
)
def test_broken_options_are_refused(build: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()  # type: ignore[operator]
