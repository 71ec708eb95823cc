"""Tree policies and drafters that propose from part of the vocabulary: the tree is that of the spread proposal."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.types import Context, Draw, Proposal
from specframe.sampling.laws import History, Sampling
from specframe.sampling.random import SeededRandom
from specframe_models.specdecpp.threshold import Threshold
from specframe_trees.beam import Beam
from specframe_trees.dyspec import DySpec
from specframe_trees.greedy import Greedy

SUPPORT = torch.tensor([1, 3, 4, 6, 7])
POLICIES = {
    "dynamic": Dynamic(depth=3, width=3, nodes=7),
    "chain": Chain(depth=3),
    "fixed": Fixed(paths=["0", "1", "4", "0.0", "0.2", "4.1"]),
    "fixed_iid": Fixed(widths=[2, 2], draw=Draw.IID),
    "fixed_without_replacement": Fixed(widths=[3, 2], draw=Draw.WITHOUT_REPLACEMENT),
    "beam": Beam(width=3, depth=3),
    "dyspec": DySpec(nodes=6, depth=3, width=3),
    "greedy": Greedy(widths=[3, 2]),
    "threshold": Threshold(depth=3, threshold=0.9),
    "threshold_iid": Threshold(depth=3, threshold=0.9, draw=Draw.IID),
}


def proposals(block: int, spread: bool):
    """A drafter of `block` levels whose logits depend on the token of the frontier node and on its depth."""
    table = 2 * torch.randn(9, 4, block, len(SUPPORT), generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def expand(frontier):
        tree = frontier.tree
        depth = tree.depth.gather(1, frontier.nodes)
        logits = table[tree.tokens.gather(1, frontier.nodes), depth]  # [B, F, K, v]
        proposal = Proposal(logits, support=SUPPORT, vocab=9)
        return proposal.whole if spread else proposal

    return expand


class Likeliest:
    """A source without chance: draws are the most probable options, whatever the number of those without mass."""

    def categorical(self, probs):
        """The most probable option of each law."""
        return probs.argmax(-1)

    def bernoulli(self, p):
        """True where that is more likely than not."""
        return p > 0.5

    def without_replacement(self, probs, k):
        """The k most probable options, -1 beyond those with mass."""
        best = probs.sort(dim=-1, descending=True, stable=True)
        found = best.indices.masked_fill(best.values == 0, -1)[..., :k]
        return torch.nn.functional.pad(found, (0, k - found.shape[-1]), value=-1)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=3), Sampling()], ids=str
)
def test_a_tree_from_a_support_is_that_of_the_spread_proposal(name, block, sampling):
    root = torch.tensor([5, 2, 8])
    trees = [
        POLICIES[name].grow(proposals(block, spread), root, Context(sampling, Likeliest())).whole(9)
        for spread in (False, True)
    ]
    for field in fields(trees[0]):
        one, two = (getattr(tree, field.name) for tree in trees)
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            assert torch.allclose(one, two, rtol=0, atol=1e-15), field.name
        else:
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two, field.name
    drafted = trees[0].tokens[:, 1:][trees[0].valid[:, 1:]]
    assert torch.isin(drafted, SUPPORT).all()


@pytest.mark.parametrize("name", ["fixed_iid", "fixed_without_replacement"])
def test_laws_are_recorded_over_the_support_unless_processors_read_the_whole_vocabulary(name):
    root = torch.tensor([5, 2, 8])
    plain = Sampling(temperature=1.0)
    banning = Sampling(temperature=1.0, processors=(lambda tokens, logits: logits.index_fill(1, tokens[0, :1], -9.0),))
    for sampling, width in ((plain, 5), (banning.following(History(root[:, None], root * 0 + 1)), 9)):
        tree = POLICIES[name].grow(proposals(1, False), root, Context(sampling, SeededRandom(7, 3).draft))
        assert tree.q.shape[-1] == width
        if sampling is plain:
            assert torch.isin(tree.tokens[:, 1:][tree.valid[:, 1:]], SUPPORT).all()


def test_both_searches_of_a_dynamic_tree_map_their_tokens():
    root = torch.tensor([5, 2, 8])
    host = POLICIES["dynamic"].search_on_host(proposals(1, False), root)
    there = POLICIES["dynamic"].search(proposals(1, False), root)
    assert torch.equal(host.tokens, there.tokens) and torch.equal(host.parent, there.parent)


def test_columns_become_tokens_and_what_is_missing_stays():
    proposal = Proposal(torch.zeros(1, 1, 1, 5), support=SUPPORT)
    assert proposal.tokens(torch.tensor([[0, 4, -1]])).tolist() == [[1, 7, -1]]
    with pytest.raises(ValueError, match="vocab"):
        _ = proposal.whole
