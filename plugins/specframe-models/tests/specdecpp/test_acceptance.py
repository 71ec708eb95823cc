"""SpecDec++'s acceptance head: its network, checkpoints and training, and that a stop by its word is lossless."""

import json

import pytest
import torch
from judged_drafter import DRAFTERS, SIZE, expected_confidence, judged
from safetensors.torch import load_file, save_file

import specframe
import specframe.plugin
from specframe import CompositionError, InputError, Sampling, WeightsError
from specframe.components.heads import Trimmed
from specframe.components.losses.distillation import Distillation
from specframe.kernel.types import Frontier, TokenTree
from specframe.plugin import Draw
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.testing import admitted, check_drafter, check_head, random_teacher, tiny_target
from specframe_coral.router import Router
from specframe_eagle.drafter import Eagle
from specframe_models.specdecpp.head import AcceptanceHead
from specframe_models.specdecpp.loss import AcceptanceLoss
from specframe_models.specdecpp.rollout import AcceptanceRollout
from specframe_models.specdecpp.threshold import Threshold
from tests.small_composition import small_composition


@pytest.mark.parametrize("layers", [0, 1, 3])
@torch.no_grad()
def test_the_network_is_the_paper_s(layers):
    _, head, target, _ = judged(layers=layers)
    features = torch.randn(2, 3, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    confidence = head.confidence(features)
    weights = head.module.state_dict()
    wanted = [[expected_confidence(weights, feature) for feature in row] for row in features.tolist()]
    assert confidence.tolist() == [pytest.approx(row, abs=1e-12) for row in wanted]
    assert torch.equal(head(features), target.head(features))


@pytest.mark.parametrize("of", [None, lambda: Trimmed(keep=4), lambda: Router(groups=3, active=2)])
def test_it_keeps_the_contract_of_heads(of):
    check_head(lambda: AcceptanceHead(of=of and of()))


def test_a_drafter_with_it_keeps_the_contract():
    check_drafter(lambda: Eagle(head=AcceptanceHead()))


@pytest.mark.parametrize("name", DRAFTERS)
@torch.no_grad()
def test_a_proposal_carries_the_confidence_of_every_level(name):
    drafter, head, target, _ = judged(name)
    tree, scores = admitted(target, specframe.plugin.Prompts(torch.tensor([[1, 2, 3, 4]]), torch.tensor([4])))
    verdict = specframe.plugin.Verdict(
        torch.empty(1, 0, dtype=torch.int64), torch.tensor([0]), scores.logits[:, 0].argmax(-1)
    )
    committed = target.commit(tree, verdict)
    drafter.open(1, 20)
    drafter.commit(committed)
    root = Frontier(TokenTree.root_only(committed.root), torch.zeros(1, 1, dtype=torch.int64))
    asked = []
    head.of = lambda features: asked.append(features) or target.head(features)
    proposal = drafter.expand(root)
    assert proposal.confidence.shape == proposal.logits.shape[:3]
    assert torch.equal(proposal.confidence, head.confidence(asked[0])), "it is made of what the logits are made of"


@pytest.mark.parametrize("name", DRAFTERS)
def test_it_is_what_the_drafter_trains_and_saves(name, tmp_path):
    drafter, head, target, _ = judged(name, layers=2)
    assert drafter.module is head.module
    assert not any(weight.requires_grad for weight in drafter.network.parameters())
    with torch.no_grad():
        for weight in head.module.parameters():
            weight.copy_(weight.bfloat16())
    drafter.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("trained_for").keys() == {"name", "fingerprint"}
    assert config == {
        "format": "acceptance",
        "hidden_size": SIZE,
        "num_layers": 2,
    }
    again = AcceptanceHead(weights=str(tmp_path))
    again.bind(target)
    assert {name: weight.tolist() for name, weight in again.module.state_dict().items()} == {
        name: weight.tolist() for name, weight in head.module.state_dict().items()
    }


@pytest.fixture
def published(tmp_path):
    """A head as the paper's authors publish it: blocks that are copies of one, in half precision."""
    chance = torch.Generator().manual_seed(4)
    block = {"weight": torch.randn(SIZE, SIZE, generator=chance), "bias": torch.randn(SIZE, generator=chance)}
    tensors = {f"model.{layer}.linear.{name}": t.half().clone() for layer in range(3) for name, t in block.items()}
    tensors["model.3.weight"] = torch.randn(2, SIZE, generator=chance).half()
    tensors["model.3.bias"] = torch.randn(2, generator=chance).half()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": SIZE, "num_layers": 3}))
    return tmp_path


@torch.no_grad()
def test_a_published_head_loads_as_it_is(published):
    head = AcceptanceHead(weights=str(published))
    head.bind(tiny_target(layers=1))
    feature = torch.randn(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    stored = {name: tensor.double() for name, tensor in load_file(published / "model.safetensors").items()}
    assert float(head.confidence(feature)) == pytest.approx(expected_confidence(stored, feature.tolist()), abs=1e-12)


def test_weights_that_do_not_fit_are_refused_and_all_misfits_listed(published):
    def refusal(size=SIZE):
        with pytest.raises(WeightsError) as refused:
            AcceptanceHead(weights=str(published)).bind(tiny_target(layers=1, size=size))
        return str(refused.value)

    assert "hidden_size: the checkpoint has 8, needed is 16" in refusal(size=16)
    tensors = load_file(published / "model.safetensors")
    del tensors["model.3.bias"]
    save_file(tensors | {"head.weight": torch.zeros(2, 2), "model.0.linear.bias": torch.zeros(3)}, published / "x")
    (published / "x").rename(published / "model.safetensors")
    message = refusal()
    for line in ("model.3.bias: missing", "head.weight: unexpected", "model.0.linear.bias: has shape [3]"):
        assert line in message
    for config in ({"format": "router", "num_layers": 3}, {"num_layers": "3"}, {"num_layers": -1}):
        (published / "config.json").write_text(json.dumps({"hidden_size": SIZE, **config}))
        assert "does not fit" in refusal()


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("specframe: 1\ntarget: {use: table, vocab: 7, seed: 3}\ndrafter: none\nverifier: match\n")
    return path


@pytest.mark.parametrize(
    ("draw", "verifier"), [("iid", "recursive"), ("iid", "block"), ("iid", "match"), ("top", "match")]
)
def test_a_chain_that_stops_by_its_word_is_lossless(draw, verifier, recipe, monkeypatch):
    """Enumerated; whether there is a second token depends on what was drawn first."""
    depths, grow = set(), Threshold.grow

    def watched(*arguments):
        tree = grow(*arguments)
        depths.update(tree.valid.sum(1).sub(1).tolist())
        return tree

    monkeypatch.setattr(Threshold, "grow", watched)
    options = [
        "drafter={use: eagle, head: {use: acceptance}}",
        f"tree={{use: threshold, depth: 2, threshold: 0.82, draw: {draw}}}",
        f"verifier={verifier}",
    ]
    valid = plan(Recipe.read(recipe, options), discover())
    emission = small_composition(valid).emission("", Sampling(temperature=1.0), seed=2)
    assert emission.compare(budget=30_000).tv < 1e-9
    assert depths == {1, 2}


@pytest.mark.parametrize("drafter", ["eagle", "falcon", "parallelspec"])
def test_greedy_output_is_the_target_s_and_the_head_decides_how_deep(drafter, recipe):
    prompts = [[1, 2, 3], [0], [5, 6]]
    short = ["sampling.max_new_tokens=12", "run.batch=3"]
    plain = specframe.load(recipe, overrides=short).generate(prompts)
    drafted = []
    for threshold in (0.0, 0.9, 1.0):
        options = [
            f"drafter={{use: {drafter}, head: {{use: acceptance}}}}",
            f"tree={{use: threshold, depth: 4, threshold: {threshold}}}",
        ]
        result = specframe.load(recipe, overrides=[*short, *options]).generate(prompts)
        assert result.tokens == plain.tokens
        drafted.append(result.acceptance.drafted / result.acceptance.cycles)
    assert drafted[0] == 1 < drafted[1] < 4 == drafted[2]


def test_it_names_what_it_needs():
    for make in (lambda: AcceptanceHead(layers=-1), lambda: AcceptanceLoss(draw=Draw.WITHOUT_REPLACEMENT)):
        with pytest.raises(InputError):
            make()
    for options in ({"temperature": -1.0}, {"rejection": 0.0}):
        with pytest.raises(InputError, match=next(iter(options))):
            AcceptanceLoss(**options)
    with pytest.raises(CompositionError, match="bind"):
        AcceptanceHead().confidence(torch.zeros(SIZE))
    drafter, _, target, rollout = judged()
    teacher = random_teacher(target, 1, 8)
    with pytest.raises(CompositionError, match="rollout"):
        AcceptanceLoss()(rollout(drafter, teacher, 0.0), teacher)
    plain = Eagle()
    plain.bind(target)
    with pytest.raises(CompositionError, match="use: acceptance"):
        AcceptanceRollout(rollout=rollout)(plain, teacher, 0.0)
    assert not Distillation()(AcceptanceRollout(rollout=rollout)(drafter, teacher, 0.0), teacher).requires_grad
