"""The search for layers that drafts can do without, and what it forecasts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specframe import CompositionError, Pipeline, compose
from specframe.cli.main import main
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain
from specframe.inspect.layer_search import agreements, forecast, search
from specframe.kernel.layers import LayerChoice

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6, 5]]
SAMPLING = {"temperature": 0.0, "max_new_tokens": 40}


@pytest.fixture
def pipeline() -> Pipeline:
    """A target of six layers, the fourth of which adds nothing."""
    model = random_model(vocab=30, size=32, layers=6)
    layer = model.model.layers[3]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    return compose(target=HFTarget.from_model(model, None), sampling=SAMPLING)


@pytest.mark.sampled
@pytest.mark.parametrize("option", [{"exit": 4}, {"skip": [3]}, {"skip": {"attention": [0], "mlp": [5]}}])
def test_agreement_is_what_the_drafter_reaches(pipeline: Pipeline, option: dict) -> None:
    drafter = OwnLayers(**option)
    drafter.bind(pipeline.parts.target)
    ((_, (agreement, seconds)),) = agreements(pipeline, pipeline.parts.target, PROMPTS, [drafter._choice(6)])
    texts = pipeline.generate(PROMPTS).tokens
    begun = [[*prompt, *text[:end]] for prompt, text in zip(PROMPTS, texts, strict=True) for end in range(39)]
    drafting = pipeline.with_parts(drafter=drafter, tree=Chain(depth=1))
    assert agreement == pytest.approx(drafting.generate(begun, max_new_tokens=3).acceptance.alpha[0], abs=0.02)
    assert seconds > 0


def test_the_layer_that_adds_nothing_is_left_out_first(pipeline: Pipeline) -> None:
    seen: list = []
    found = search(pipeline, PROMPTS, seen.append)
    assert seen == found
    exits, grown = found[:5], found[5:]  # a set that has grown long may be an exit, too
    assert [draft.option for draft in exits] == [f"exit: {layer}" for layer in range(1, 6)]
    first, second = grown[:2]
    assert first.option in ("skip: {attention: [3], mlp: []}", "skip: {attention: [], mlp: [3]}")
    assert second.option == "skip: [3]" and second.agreement == 1
    gains = [draft.gain for draft in grown]
    assert len(gains) == 11 or max(gains[-6:]) <= max(gains[:-6]), "it goes on while a forecast is better"


def test_the_forecast_is_the_chain_that_gains_most() -> None:
    """A draft of half a forward pass that is always right: k of them cost k / 2, and k + 1 tokens are committed."""
    forwards = dict.fromkeys(range(1, 10), 1.0)
    found = forecast(LayerChoice.without(4, [0], [0]), 1.0, 0.5, forwards)
    assert (found.depth, found.gain) == (8, pytest.approx(9 / 5))
    rare = forecast(LayerChoice.without(4, [0], [0]), 0.3, 0.5, forwards)
    assert (rare.depth, rare.gain) == (1, pytest.approx(1.3 / 1.5))
    above = forecast(LayerChoice.first(2, 4), 0.5, 0.5, dearer(forwards))
    assert above.gain == pytest.approx(1.5 / (0.5 + 0.5 * 2 + 0.5)), "the first half runs for one node alone"


def dearer(forwards: dict[int, float]) -> dict[int, float]:
    """Passes that take twice as long for more than one node."""
    return {nodes: 1.0 if nodes == 1 else 2.0 for nodes in forwards}


def test_a_target_without_layers_is_refused() -> None:
    with pytest.raises(CompositionError, match="a transformers model"):
        search(compose(target=TableTarget(vocab=5), sampling=SAMPLING), PROMPTS)


@pytest.mark.full
def test_the_running_recipe_is_unchanged(pipeline: Pipeline) -> None:
    before = replace(pipeline).generate(PROMPTS).tokens
    search(pipeline, PROMPTS)
    assert pipeline.generate(PROMPTS).tokens == before


def test_the_command_ends_with_a_recipe_s_lines(recipe, capsys) -> None:
    assert main(["profile", str(recipe), "--skip", "sampling.max_new_tokens=24"]) == 0
    output = capsys.readouterr().out
    assert "drafter: {use: self, " in output and "tree: {use: chain, depth: " in output
    assert main(["profile", str(recipe), "--skip", "--precisions"]) == 2
    assert "--skip measures the target alone" in capsys.readouterr().err
