"""A drafting model with the acceptance head: what it reads, what it stops, and what is trained and saved of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import specframe
from specframe import CompositionError, Sampling
from specframe.certify.compositions.small import SmallComposition
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.heads import FullHead, Trimmed
from specframe.components.rollouts.text import AlongText
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model, tiny_model
from specframe.plugin import Draw
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.testing import check_drafter
from specframe.training.online import Online
from specframe_models.specdecpp.head import AcceptanceHead
from specframe_models.specdecpp.loss import AcceptanceLoss
from specframe_models.specdecpp.rollout import AcceptanceRollout
from specframe_models.specdecpp.threshold import Threshold

VOCAB = 11
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 1]]


def judged(layers: int = 1, **options) -> ModelDrafter:
    return ModelDrafter.from_model(
        random_model(vocab=VOCAB, layers=1, seed=4), head=AcceptanceHead(layers=layers), **options
    )


def composed(drafter: ModelDrafter, tree, batch: int = 3) -> specframe.Pipeline:
    return specframe.compose(
        target=HFTarget.from_model(random_model(vocab=VOCAB, layers=2, seed=3)),
        drafter=drafter,
        tree=tree,
        verifier="match",
        sampling={"temperature": 0.0, "max_new_tokens": 12},
        run={"batch": batch},
    )


def test_it_keeps_the_contract_of_drafters() -> None:
    check_drafter(lambda: judged().untrained(3))


def test_confidence_is_of_what_the_logits_are_read_from(monkeypatch) -> None:
    """At every node: the head's of the model's last hidden state along the node's path, next to the model's logits."""
    seen = []
    expand = ModelDrafter.expand
    monkeypatch.setattr(
        ModelDrafter, "expand", lambda self, frontier: seen.append((frontier, expand(self, frontier))) or seen[-1][1]
    )
    drafter = judged()
    pipeline = composed(drafter, {"use": "fixed", "widths": [2, 1]}, batch=1)
    pipeline.generate(PROMPTS[0], max_new_tokens=2)
    (root, first), (below, second) = seen[:2]
    text = [*PROMPTS[0], int(root.tree.tokens[0, 0])]
    paths = [text, *([*text, int(below.tree.tokens[0, node])] for node in below.nodes[0].tolist())]
    found = [(first.logits[0, 0, 0], first.confidence[0, 0, 0])]
    found += [(second.logits[0, place, 0], second.confidence[0, place, 0]) for place in range(2)]
    for path, (logits, confidence) in zip(paths, found, strict=True):
        whole, states = drafter.read_states(torch.tensor([path]))
        assert logits.shape == (VOCAB,)
        torch.testing.assert_close(logits, whole[0, -1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(confidence, drafter.head.confidence(states[0, -1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_tree_threshold_stops_by_it(batch: int) -> None:
    drafted = []
    for threshold in (0.0, 1.0):
        pipeline = composed(judged(), Threshold(depth=4, threshold=threshold), batch)
        result = pipeline.generate(PROMPTS)
        assert result.tokens == pipeline.plain().generate(PROMPTS).tokens
        drafted.append(result.acceptance.drafted / result.acceptance.cycles)
    assert drafted == [1, 4]


def test_a_stop_by_it_is_lossless(tmp_path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "specframe: 1\ntarget: {use: table, vocab: 3}\nverifier: recursive\n"
        f"drafter: {{use: model, model: {tiny_model(3)}, dtype: float64, head: acceptance}}\n"
        "tree: {use: threshold, depth: 2, threshold: 0.6, draw: iid}\n",
        encoding="utf-8",
    )
    miniature = SmallComposition.of(plan(Recipe.read(recipe), discover()))
    comparison = replace(miniature, length=3).emission("", Sampling(temperature=1.0), seed=2).compare(budget=30_000)
    assert comparison.enumeration.exhausted and comparison.tv < 1e-9


def test_the_head_learns_and_the_model_stays() -> None:
    drafter = judged()
    target = HFTarget.from_model(random_model(vocab=VOCAB, layers=2, seed=3))
    drafter.bind(target)
    model = {name: value.clone() for name, value in drafter._reader.model.state_dict().items()}
    tokens = torch.randint(VOCAB, (4, 12), generator=torch.Generator().manual_seed(1))
    teacher = target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool))
    loss, rollout = (
        AcceptanceLoss(draw=Draw.IID, temperature=1.0, rejection=1.0),
        AcceptanceRollout(rollout=AlongText()),
    )
    optimizer = torch.optim.Adam(drafter.module.parameters(), lr=3e-2)
    losses = []
    for _ in range(30):
        made = rollout(drafter, teacher, 0.0)
        assert made.confidence is not None and made.confidence.shape == tokens.shape
        found = loss(made, teacher)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(found.detach()))
    assert losses[-1] < losses[0] - 0.02
    assert all(torch.equal(value, model[name]) for name, value in drafter._reader.model.state_dict().items())


def test_it_is_what_is_trained_and_saved(tmp_path) -> None:
    drafter = judged(layers=2)
    drafter.bind(HFTarget.from_model(random_model(vocab=VOCAB, layers=2, seed=3)))
    assert drafter.module is drafter.head.module
    drafter.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["format"] == "acceptance"
    again = ModelDrafter.from_model(
        random_model(vocab=VOCAB, layers=1, seed=4), head=AcceptanceHead(weights=str(tmp_path))
    )
    again.bind(HFTarget.from_model(random_model(vocab=VOCAB, layers=2, seed=3)))
    stored, known = again.module.state_dict(), drafter.module.state_dict()
    assert all(torch.equal(stored[name], known[name].bfloat16().to(stored[name].dtype)) for name in known)


def test_refusals() -> None:
    with pytest.raises(CompositionError, match="makes its own logits; a head rates them: take `acceptance`"):
        ModelDrafter.from_model(random_model(vocab=VOCAB), head=FullHead())
    with pytest.raises(CompositionError, match="leave out the `of` of its head"):
        ModelDrafter.from_model(random_model(vocab=VOCAB), head=AcceptanceHead(of=Trimmed(keep=4)))
    with pytest.raises(CompositionError, match="leave out masks, or the head"):
        judged(masks=Masks(1, 2))
    with pytest.raises(CompositionError, match="leave out masks, head, together, KV selection or exits"):
        judged().exit_after([1])
    with pytest.raises(CompositionError, match="of ModelDrafter its head is trained"):
        Online(drafter=judged())
    rounded = ModelDrafter(model="zoo://talk-7m", quantize="int4", head=AcceptanceHead())
    with pytest.raises(CompositionError, match="and native code computes this model: leave"):
        rounded.bind(HFTarget(model="zoo://talk-7m", dtype="float32"))
