"""Padding of any kind changes nothing: neither what is emitted, nor what a well-formed tree is."""

from dataclasses import replace

import pytest
import torch

from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.kernel.types import Context, Draw
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import GivenDrafter, compare_cycle
from specframe.testing.trees import check_shape
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.25, 0.6, 0.15]], dtype=torch.float64)
Q = torch.tensor([[0.35, 0.05, 0.6], [0.02, 0.08, 0.9], [0.1, 0.15, 0.75]], dtype=torch.float64)


class Deeper:
    """A policy whose trees end in invalid nodes, the first below the first leaf, each of the others below the last."""

    def __init__(self, inner, more):
        self.inner, self.more = inner, more
        self.promise = replace(inner.promise, nodes=inner.promise.nodes + more)

    def grow(self, expand, root, context):
        tree = self.inner.grow(expand, root, context)
        batch, count = tree.tokens.shape
        leaf = int(tree.depth[0].argmax())  # all rows have one shape
        parents = torch.tensor([leaf, *range(count, count + self.more - 1)]).expand(batch, -1)
        zeros = torch.zeros_like(parents)
        fields = {
            "tokens": zeros,
            "parent": parents,
            "valid": zeros.bool(),
            "draw": zeros + int(Draw.IID),
            "q_row": zeros,
        }
        return replace(tree, **{name: torch.cat([getattr(tree, name), more], 1) for name, more in fields.items()})


@pytest.mark.parametrize("verifier", [Match, Recursive, Block, Traversal, KSeq, Transport])
@pytest.mark.parametrize("tree", [Chain(depth=2, draw=Draw.IID), Fixed(widths=[2, 1], draw=Draw.IID)])
@pytest.mark.parametrize("more", [1, 3])
def test_padding_below_the_deepest_leaf_is_harmless(tree, verifier, more):
    assert compare_cycle(Deeper(tree, more), verifier(), P, Q).tv < 1e-9


def test_padding_below_the_levels_is_no_well_formed_tree():
    def draft(policy):
        context = Context(Sampling(temperature=1.0), SeededRandom(0, 2).draft)
        return policy.grow(GivenDrafter(Q).expand, torch.zeros(2, dtype=torch.int64), context)

    fixed = Fixed(widths=[2, 1], draw=Draw.IID)
    check_shape(draft(fixed), vocab=3, nodes=5, draws=fixed.promise.draws)
    with pytest.raises(AssertionError, match="a node lies at depth 3, but levels is 2"):
        check_shape(draft(Deeper(fixed, 1)), vocab=3, nodes=6, draws=fixed.promise.draws)
