"""The target as its own drafter."""

import pytest
import torch

import specframe
from specframe import CompositionError, InputError
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.thinning import thin
from specframe.components.targets.tiny import random_model
from specframe.testing import check_drafter

KINDS = ["llama", "qwen3", "mistral"]


def model(kind="llama", layers=3):
    return random_model(kind, vocab=11, layers=layers, seed=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [[0], [0, 2], [2, 1]])
@torch.no_grad()
def test_a_thin_model_is_one_built_of_these_layers(kind, kept):
    whole = model(kind)
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    small = thin(whole, kept)
    literal = random_model(kind, vocab=11, layers=len(kept), seed=2)
    weights = {name: value for name, value in before.items() if ".layers." not in name}
    for place, index in enumerate(kept):
        prefix = f"model.layers.{index}."
        weights |= {n.replace(prefix, f"model.layers.{place}."): v for n, v in before.items() if n.startswith(prefix)}
    literal.load_state_dict(weights)
    tokens = torch.tensor([[1, 5, 2, 7]])
    torch.testing.assert_close(small(tokens).logits, literal(tokens).logits)
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    shared = {parameter.data_ptr() for parameter in whole.parameters()}
    assert all(parameter.data_ptr() in shared for parameter in small.parameters()), "nothing is stored twice"
    assert whole.config.num_hidden_layers == 3 and len(whole.model.layers) == 3


def test_all_layers_draft_the_target_s_tokens():
    whole = model()
    target = HFTarget.from_model(whole)
    drafter = ModelDrafter.from_model(thin(whole, [0, 1, 2]))
    pipeline = specframe.compose(target=target, drafter=drafter, tree={"use": "chain", "depth": 3})
    assert pipeline.generate([[1, 2, 3]], max_new_tokens=40).acceptance.tau == 4


@pytest.mark.parametrize("options", [{"exit": 1}, {"exit": 2}, {"skip": [1]}, {"skip": [0, 2]}])
def test_greedy_output_is_the_targets(options):
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8]]
    sampling = {"temperature": 0.0, "max_new_tokens": 12}
    texts = []
    for drafter in (OwnLayers(**options), "none"):
        tree = None if drafter == "none" else {"use": "fixed", "widths": [2, 2]}
        parts = specframe.compose(
            target=HFTarget.from_model(model()), drafter=drafter, tree=tree, sampling=sampling, run={"batch": 2}
        )
        texts.append(parts.generate(prompts).tokens)
    assert texts[0] == texts[1]


def test_it_keeps_the_contract_of_drafters():
    check_drafter(
        lambda: OwnLayers(exit=1), target=lambda: HFTarget.from_model(random_model(vocab=3, layers=2, seed=3))
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of"),
        ({"exit": 1, "skip": [0]}, "exactly one of"),
        ({"exit": 0}, "at least 1 layer"),
        ({"skip": []}, "each once"),
        ({"skip": [1, 1]}, "each once"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        OwnLayers(**options)


@pytest.mark.parametrize(
    ("options", "words"), [({"exit": 3}, "leave before the last"), ({"skip": [3]}, "layers 0 .. 2")]
)
def test_layers_that_the_target_does_not_have_are_refused(options, words):
    with pytest.raises(CompositionError, match=words):
        OwnLayers(**options).bind(HFTarget.from_model(model()))


def test_a_target_without_layers_is_refused():
    with pytest.raises(CompositionError, match="such as `hf`"):
        OwnLayers(exit=1).bind(TableTarget(vocab=3))
