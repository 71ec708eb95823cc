"""Every head on every neural drafter: it decodes, is certified, hands its confidence on, and is trained and loaded."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe import Sampling, WeightsError
from specframe.components.heads import FullHead
from specframe.components.rollouts.teacher_forced import AllLevels
from specframe.neural import checkpoint
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.testing import GivenSession, GrowingTree, fit, random_teacher, shake, tiny_target
from specframe_chimera.drafter import Chimera
from specframe_coral.router import Router
from specframe_coral.routing import RoutingLoss, RoutingRollout
from specframe_eagle.drafter import Eagle
from specframe_falcon.drafter import Falcon
from specframe_medusa.hydra import Hydra
from specframe_medusa.medusa import Medusa
from specframe_models.specdecpp.head import AcceptanceHead
from specframe_models.specdecpp.loss import AcceptanceLoss
from specframe_models.specdecpp.rollout import AcceptanceRollout
from specframe_parallelspec.drafter import ParallelSpec
from tests.small_composition import small_composition

VOCAB, SIZE = 11, 8
DRAFTERS = {
    "eagle": (Eagle, {}),
    "eagle, partial_alignment: true, feature_sampling: true": (
        Eagle,
        {"partial_alignment": True, "feature_sampling": True},
    ),
    "falcon, block: 2": (Falcon, {"dropout": 0.0}),
    "parallelspec, masks: 2": (ParallelSpec, {"masks": 2}),
    "parallelspec, masks: 1, features: false": (ParallelSpec, {"masks": 1, "features": False}),
    "medusa": (Medusa, {}),
    "hydra": (Hydra, {}),
    "hydra, prefix: true": (Hydra, {"prefix": True}),
    "chimera": (Chimera, {}),
}
HEADS = [
    "full",
    "{use: trimmed, keep: 2}",
    "{use: router, groups: 3, active: 2}",
    "acceptance",
    "{use: acceptance, of: {use: trimmed, keep: 2}}",
    "{use: acceptance, of: {use: router, groups: 3, active: 2}}",
]
TRAINED = {
    "acceptance": (
        AcceptanceHead,
        AcceptanceRollout,
        {"reached": False},
        AcceptanceLoss(temperature=1.0, rejection=1.0),
    ),
    "router": (lambda **o: Router(groups=4, active=2, **o), RoutingRollout, {}, RoutingLoss()),
}


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("specframe: 1\ntarget: {use: table, vocab: 7, seed: 3}\ndrafter: none\nverifier: match\n")
    return path


def composed(drafter: str, head: str, tree: str, verifier: str = "match") -> list[str]:
    return [f"drafter={{use: {drafter}, head: {head}}}", f"tree={tree}", f"verifier={verifier}"]


@pytest.mark.sampled
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_the_target_s_greedy_and_in_law(drafter, head, recipe):
    prompts, short = [[1, 2, 3], [0], [5, 6]], ["sampling.max_new_tokens=10", "run.batch=3"]
    plain = specframe.load(recipe, overrides=short).generate(prompts)
    tree = "{use: dynamic, depth: 3, width: 2, nodes: 5}"
    result = specframe.load(recipe, overrides=[*short, *composed(drafter, head, tree)]).generate(prompts)
    assert result.tokens == plain.tokens and result.acceptance.drafted > 0
    sampled = composed(drafter, head, "{use: chain, depth: 2, draw: iid}", "recursive")
    small = small_composition(plan(Recipe.read(recipe, sampled), discover()))
    assert small.emission("", Sampling(temperature=1.0), seed=2).compare(budget=30_000).tv < 1e-9


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_tree_threshold_stops_by_the_head_s_confidence(drafter, recipe):
    prompts, short = [[1, 2, 3], [0], [5, 6]], ["sampling.max_new_tokens=12", "run.batch=3"]
    drafted = []
    for threshold in (0.0, 1.0):
        tree = f"{{use: threshold, depth: 4, threshold: {threshold}}}"
        result = specframe.load(recipe, overrides=[*short, *composed(drafter, "acceptance", tree)]).generate(prompts)
        drafted.append(result.acceptance.drafted / result.acceptance.cycles)
    assert drafted == [1, 4], "a token whose rejection is feared as much as is possible ends the draft, or none does"


def bound(drafter: str, head):
    kind, options = DRAFTERS[drafter]
    made = kind(head=head, **options)
    made.bind(tiny_target(layers=1, vocab=VOCAB, size=SIZE))
    shake(made.network)
    return made


@torch.no_grad()
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_confidence_is_of_what_the_logits_are_read_from(drafter):
    head = AcceptanceHead()
    made = bound(drafter, head)
    shake(head.module)
    read = []
    head.of = lambda hidden: read.append(hidden) or made.target.head(hidden)
    session = GivenSession.random(2, VOCAB, SIZE)
    made.open(2, 20)
    made.commit(session.admit([3, 5]))
    proposal = made.expand(GrowingTree(session.root, VOCAB).frontier([0]))
    assert proposal.confidence.shape == proposal.logits.shape[:3]
    assert torch.equal(proposal.confidence, head.confidence(read[0]))


@pytest.mark.sampled
@pytest.mark.parametrize("head", TRAINED)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_head_with_weights_is_trained_saved_and_loaded_and_the_drafter_stays(drafter, head, tmp_path):
    make, rollout, options, loss = TRAINED[head]
    made = bound(drafter, make())
    teacher = random_teacher(made.target, 4, 16)
    unroll = rollout(rollout=AllLevels(), **options)
    fixed = {name: weight.clone() for name, weight in made.network.state_dict().items()}
    values = fit(made, [teacher], unroll, [(loss, 1.0)], steps=40, rate=3e-2)
    assert values[-1] < 0.9 * values[0]
    assert all(torch.equal(fixed[name], weight) for name, weight in made.network.state_dict().items())
    made.module.eval()
    with torch.no_grad():
        for weight in made.module.parameters():
            weight.copy_(weight.bfloat16())
    made.save(tmp_path)
    again = bound(drafter, make(weights=str(tmp_path)))
    for one, two in zip(made.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("kind", [Medusa, Hydra, Chimera])
def test_lm_heads_for_every_level_and_another_head_do_not_go_together(kind, tmp_path):
    own = kind(heads=2)
    own.bind(tiny_target(layers=1, vocab=VOCAB, size=SIZE))
    own.save(tmp_path)
    assert checkpoint.read_config(tmp_path)["vocab_size"] == VOCAB
    with pytest.raises(WeightsError, match=r"has an LM head for every level.*leave drafter\.head out"):
        kind(heads=2, head=FullHead(), weights=str(tmp_path)).bind(tiny_target(layers=1, vocab=VOCAB, size=SIZE))
