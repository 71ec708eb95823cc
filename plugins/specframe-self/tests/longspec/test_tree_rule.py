"""The published tree rule at temperatures above 0, which reads probabilities by node number, is found to be lossy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specframe.certify.compositions.emission import Emission
from specframe.components.trees.dynamic import Dynamic
from specframe.components.verifiers.record import Record
from specframe.components.verifiers.recursive import SiblingSlots, walk
from specframe.decoding.session import Parts
from specframe.kernel.capabilities import Needs
from specframe.kernel.sampling import RandomSource
from specframe.kernel.types import TokenTree, Verdict
from specframe.plugin import Laws
from specframe.sampling.laws import Sampling
from specframe.testing import shake, tiny_target
from specframe_self.longspec.drafter import LongSpec


class NumberedSlots(SiblingSlots):
    """Siblings as LongSpec's `verify_stochastic` has them: node i is taken for the token i."""

    def law(self, slot: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor]:
        """The node's number as its token [B, 1], certain to be drawn, [B, V]."""
        _, q = super().law(slot, earlier)
        number = (slot % q.shape[1])[:, None]
        return number, torch.zeros_like(q).scatter_(1, number, 1.0)


class TopDown:
    """Children of the most probable tokens, one after the other, each accepted with what is left of its probability."""

    lossless = True
    needs = Needs()

    def __init__(self, slots: type[SiblingSlots]) -> None:
        self.slots = slots

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus."""
        p = laws.all
        none = p.new_zeros(len(p), 1, p.shape[2])
        record = Record(replace(tree, q=none, q_row=torch.zeros_like(tree.tokens)), p.shape[2], p.dtype)
        return walk(tree, p, self.slots(tree, record), random)


@pytest.mark.sampled
@pytest.mark.parametrize(("slots", "exact"), [(SiblingSlots, True), (NumberedSlots, False)])
def test_probabilities_are_read_by_token_and_not_by_node_number(slots: type[SiblingSlots], exact: bool) -> None:
    """Both rules are the same but for the index: by token the enumeration is exact, by node number it is far off."""
    drafter = LongSpec(window=8)
    target = tiny_target(vocab=3, size=8, layers=3)
    drafter.bind(target)
    shake(drafter.module)
    drafter.module.eval()
    parts = Parts(target, drafter, Dynamic(depth=2, width=2, nodes=4), TopDown(slots))
    found = Emission("", lambda: parts, Sampling(temperature=1.0), 3, (0, 1, 2)).compare(budget=60_000)
    assert found.enumeration.exhausted
    assert (found.bound < 1e-9) if exact else (found.tv > 1e-2)
