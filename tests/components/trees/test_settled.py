"""Which policies settle the number of siblings before the first of them is drawn, and who needs it."""

import pytest

from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.traversal import Traversal
from specframe.plugin import Draw
from specframe_trees.adaptive import Adaptive
from specframe_trees.beam import Beam
from specframe_trees.dyspec import DySpec
from specframe_trees.spectr.transport import Transport

SETTLED = [
    Adaptive(costs=[1.0, 1.3, 1.65], depth=2, widths=(2,), draw=Draw.IID),
    Fixed(widths=[2, 2], draw=Draw.WITHOUT_REPLACEMENT),
    Chain(depth=3, draw=Draw.IID),
]


@pytest.mark.parametrize("policy", SETTLED, ids=lambda policy: type(policy).__name__)
def test_a_given_shape_is_settled_and_stays_so_when_it_is_made_smaller(policy):
    for each in (policy, policy.smaller()):
        assert each.promise.fixed_sibling_count and not list(Transport().needs.misfits("transport", each.promise))


@pytest.mark.parametrize("policy", [Beam(width=2, depth=2), DySpec(nodes=4)], ids=lambda policy: type(policy).__name__)
def test_a_policy_that_looks_at_earlier_siblings_is_not(policy):
    assert not policy.promise.fixed_sibling_count
    assert any("settled" in misfit for misfit in Transport().needs.misfits("transport", policy.promise))
    assert not list(Traversal().needs.misfits("traversal", policy.promise))
