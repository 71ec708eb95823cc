"""The output's distribution, enumerated: every kind of tree and verifier, and what must not pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import dflash_texts as texts
import pytest
import torch
from torch import Tensor

import specframe
from specframe import Sampling
from specframe.certify.compositions.emission import Emission
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.trees.growth import Growth
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.decoding.session import Parts
from specframe.plugin import Context, Draw, Expand, Frontier, Promise, Proposal, TokenTree
from specframe.testing import GivenDrafter, GivenTarget, shake, tiny_target
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark
from specframe_models.specdecpp.threshold import Threshold
from specframe_trees.dyspec import DySpec

EXACT = 1e-9
COMPOSITIONS = [
    (lambda: Chain(depth=2), Match),
    (lambda: Chain(depth=2, draw=Draw.IID), Recursive),
    (lambda: Chain(depth=2, draw=Draw.IID), Traversal),
    (lambda: Dynamic(depth=2, width=2, nodes=4), Match),
    (lambda: Dynamic(depth=2, width=2, nodes=4), Recursive),
    (lambda: Fixed(widths=[2, 1], draw=Draw.WITHOUT_REPLACEMENT), Recursive),
    (lambda: DySpec(depth=2, width=2, nodes=3), Recursive),
    (lambda: Threshold(depth=2, threshold=0.55, draw=Draw.IID), Recursive),
]
DRAFTERS = {
    "dflash": lambda: DFlash(block_size=3, layers=1),
    "dspark": lambda: DSpark(block_size=2, layers=1, rank=2),
    "dspark, rnn": lambda: DSpark(block_size=2, layers=1, rank=2, markov="rnn"),
}


def distance(make: object, tree: object, verifier: type, length: int = 3) -> float:
    """The total variation between the output's distribution and the target's, of a drafter with weights that matter."""
    target = tiny_target(vocab=3, layers=1)
    drafter = make()
    drafter.bind(target)
    shake(drafter.network, by=1.0)
    parts = Parts(target, drafter, tree, verifier())
    return Emission("", lambda: parts, Sampling(temperature=1.0), length, (0, 2, 1)).compare(budget=200_000).tv


@pytest.mark.sampled
@pytest.mark.parametrize(("tree", "verifier"), COMPOSITIONS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_distributed_as_the_target_s(drafter: str, tree: object, verifier: type) -> None:
    assert distance(DRAFTERS[drafter], tree(), verifier) < EXACT


class Marginal(DSpark):
    """A distribution that an engine might take for DSpark's: the block's own, the bias left out when it is recorded."""

    def propose(self, root: Tensor, tree: object, context: Context) -> TokenTree:
        draft = super().propose(root, tree, context)
        states = self._session.draft[0].outputs[:, 0]
        return replace(draft, q=self.logits(states).softmax(-1)[:, : draft.q.shape[1]])


def test_the_block_s_marginals_are_not_what_was_drawn_from() -> None:
    tree = Chain(depth=2, draw=Draw.IID)
    assert distance(lambda: Marginal(block_size=2, layers=1, rank=2), tree, Recursive) > 1e-3


@dataclass(frozen=True)
class Scheduled:
    """DSpark's scheduler (appendix A): a drafted chain is cut where confidence and costs have it.

    `times[n]` is what a pass over n drafted tokens costs. With early stop a token is added as long as the tokens per
    time do not fall; without, as in the published search, the best length of all is taken, by confidences that were
    made after the tokens above them were drawn.
    """

    times: tuple[float, ...]
    early_stop: bool

    @property
    def promise(self) -> Promise:
        return Promise(frozenset({Draw.IID}), len(self.times), len(self.times) - 1, fixed_sibling_count=True)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        growth, confidences = Growth(root), []
        node = torch.zeros_like(root)[:, None]
        for _ in self.times[1:]:
            proposal = expand(Frontier(growth.tree, node))
            law = context.sampling.law(proposal.logits[:, :, 0], growth.tree, node)
            rows = torch.full_like(node, growth.record(law))
            growth.add(context.random.categorical(law), node, Draw.IID, q_rows=rows)
            confidences.append(proposal.confidence[:, 0, 0])
            node = node + 1
        reached = torch.stack(confidences, 1).cumprod(1)  # [B, K]
        tokens = torch.nn.functional.pad(1 + reached.cumsum(1), (1, 0), value=1.0)
        speed = tokens / torch.tensor(self.times)
        stops = (speed[:, 1:] >= speed[:, :-1]).long().cumprod(1).sum(1)
        length = stops if self.early_stop else speed.argmax(1)
        depth = torch.arange(len(self.times))
        return replace(growth.tree, valid=depth <= length[:, None])


class Confident(GivenDrafter):
    """A drafter whose confidence is one half at the root, and certainty below token 0 alone."""

    def expand(self, frontier: Frontier) -> Proposal:
        tokens = frontier.tree.tokens.gather(1, frontier.nodes)
        sure = torch.where(frontier.nodes == 0, 0.5, torch.where(tokens == 0, 1.0, 0.0))
        return replace(super().expand(frontier), confidence=sure[..., None])


@pytest.mark.parametrize(("early_stop", "wanted"), [(True, 0.0), (False, 0.15)])
def test_a_schedule_that_looks_at_later_confidences_is_lossy_by_the_paper_s_own_figure(
    early_stop: bool, wanted: float
) -> None:
    """Two tokens of (.7, .3), drafted by (.5, .5): without early stop they come out as (.85, .15)."""
    laws = torch.tensor([[0.7, 0.3], [0.5, 0.5]], dtype=torch.float64)
    target, drafter = GivenTarget(laws[0]), Confident(laws[1])
    tree = Scheduled((1.0, 1.9, 1.9), early_stop)
    parts = Parts(target, drafter, tree, Recursive())
    comparison = Emission("", lambda: parts, Sampling(temperature=1.0), 2).compare(budget=10_000)
    assert comparison.tv == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("times", [(1.0, 1.3, 1.3), (1.0, 1.5, 1.5), (1.0, 1.6, 1.6)])
def test_dspark_s_own_confidence_is_lossless_with_early_stop_alone(times: tuple[float, ...]) -> None:
    assert distance(DRAFTERS["dspark"], Scheduled(times, early_stop=True), Recursive) < EXACT


def test_dspark_s_own_confidence_is_lossy_without() -> None:
    times = [(1.0, cost, cost) for cost in (1.2, 1.3, 1.4, 1.5, 1.6, 1.7)]
    assert max(distance(DRAFTERS["dspark"], Scheduled(cost, False), Recursive) for cost in times) > 1e-3


@pytest.mark.parametrize("drafter", ["dflash", "dspark"])
def test_a_recipe_with_a_tree_too_deep_is_one_clear_line(drafter: str) -> None:
    target = texts.target(torch.float32)
    with pytest.raises(specframe.RecipeError, match="make the tree at most 3 deep"):
        specframe.compose(
            target=target,
            drafter={"use": drafter, "block_size": 4 if drafter == "dflash" else 3},
            tree={"use": "chain", "depth": 4},
            verifier="match",
        )
