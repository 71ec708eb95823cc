"""A drafting model of some layers of a checkpoint, or quantized: against the same model made by hand."""

from __future__ import annotations

import copy
import logging

import pytest
import torch

import specframe
from specframe import CompositionError, InputError
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import Context, Draw
from specframe.native.linear import QuantizedLinear
from specframe.native.visibility import Mask
from specframe.neural.cache import SlotCache
from specframe.neural.forward import Pass
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import GivenSession, check_drafter, check_proposals
from tests.components.drafters.test_model_drafter import literal, same, tiny
from tests.components.sessions import first, later

VOCAB = 11


def without(model, layers):
    """The model, its other layers deleted one by one."""
    fewer = copy.deepcopy(model)
    kept = [fewer.model.layers[index] for index in layers]
    fewer.model.layers = torch.nn.ModuleList(kept)
    for number, layer in enumerate(kept):
        layer.self_attn.layer_idx = number
    fewer.config.num_hidden_layers = len(kept)
    return fewer


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of four layers that native code can compute."""
    random_model(vocab=VOCAB, size=32, layers=4, seed=3).float().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize("layers", [[0, 2], [1], [0, 1, 2, 3]])
def test_drafts_are_those_of_a_model_of_these_layers(folder, layers):
    whole = HFTarget(model=folder, dtype="float64")
    drafter = ModelDrafter(model=folder, dtype="float64", layers=layers)
    drafter.bind(whole)
    texts = [[1, 2, 3, 4], [5, 9], [6, 7, 8]]
    drafter.open(3, 64)
    drafter.commit(first(texts))
    for policy in (Dynamic(depth=3, width=2, nodes=5), Chain(depth=3, draw=Draw.IID)):
        root = torch.tensor([text[-1] for text in texts])
        mine, other = (Context(Sampling(temperature=0.7), SeededRandom(1, 3).draft) for _ in range(2))
        draft = drafter.propose(root, policy, mine)
        assert same(draft, policy.grow(literal(without(whole.model, layers), texts), root, other))
        drafter.commit(later([[8, 9], [10], [1, 2]]))
        texts = [text + more for text, more in zip(texts, ([8, 9], [10], [1, 2]), strict=True)]


def storage(model):
    return {parameter.data_ptr() for parameter in model.parameters()}


def test_weights_are_the_target_s_where_they_can_be(folder, caplog):
    target = HFTarget(model=folder)
    drafter = ModelDrafter(model=folder, layers=[0, 3])
    drafter.bind(target)
    assert drafter.depth == 2 and not drafter._loaded.own
    assert storage(drafter._reader.model) < storage(target.model)
    assert len(target.model.model.layers) == 4 and target.config.num_hidden_layers == 4
    assert [layer.self_attn.layer_idx for layer in target.model.model.layers] == [0, 1, 2, 3]
    for options, words in [
        ({"dtype": "float64"}, "its dtype is float64 and the target's float32"),
        ({"quantize": "int8"}, "its quantize is int8 and the target's None"),
        ({"attention": "eager"}, "an `attention` of its own"),
    ]:
        other = ModelDrafter(model=folder, layers=[0, 3], **options)
        with caplog.at_level(logging.WARNING):
            other.bind(target)
        assert words in caplog.text
        assert not storage(other._reader.model) & storage(target.model)


def test_a_drafter_that_is_trained_leaves_the_target_alone(folder, tmp_path):
    target = HFTarget(model=folder)
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    drafter = ModelDrafter(model=folder, layers=[0, 3])
    drafter.bind(target)
    module = drafter.module
    assert module is drafter.module and not storage(module) & storage(target.model)
    assert all(p.requires_grad for p in module.parameters())
    assert not any(p.requires_grad for p in target.model.parameters())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in target.model.state_dict().items())
    drafter.save(tmp_path / "trained")
    (tmp_path / "trained" / "new").touch()
    assert len({path.stat().st_mode for path in (tmp_path / "trained").iterdir()}) == 1, "as the user's other files"
    again = ModelDrafter(weights=str(tmp_path / "trained"))
    again.bind(target)
    assert again.depth == 2
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again.read_text(tokens), drafter.read_text(tokens).detach())


def test_layers_of_a_quantized_target_are_computed_by_native_passes(folder):
    target = HFTarget(model=folder, quantize="int8")
    drafter = ModelDrafter(model=folder, layers=[1, 3])
    drafter.bind(target)
    assert drafter._loaded.native is target.forward
    check_proposals(drafter, lambda rows: GivenSession.random(rows, VOCAB, 8), by_native_passes(drafter), expansions=3)


def by_native_passes(drafter, depth=None):
    """The answer of native passes that read a text and a path from scratch, by a chain."""
    loaded = drafter._loaded
    kept = list(loaded.layers)[:depth]
    runs = tuple(layer in kept for layer in range(loaded.count))

    def wanted(session, row, path):
        text = torch.cat([torch.zeros(1, dtype=torch.int64), session.tokens[row], path])
        cache = SlotCache(loaded.count, len(text), 1)
        places = torch.arange(len(text))[None]
        visibility = Mask(places[:, None] <= places[:, :, None], places)
        asked = Pass(text[None], places, visibility, layers=LayerChoice(runs, runs), keep=slice(-1, None))
        return loaded.forward.run(asked, cache)[0][0]

    return wanted


def reading(model):
    """The answer of a model that reads a text and a path from scratch."""

    @torch.no_grad()
    def wanted(session, row, path):
        text = torch.cat([torch.zeros(1, dtype=torch.int64), session.tokens[row], path])
        return model(text[None]).logits[0, -1:]

    return wanted


@pytest.mark.parametrize("layers", [None, [0, 2]])
@pytest.mark.parametrize("quantize", ["int3", "int4", "int8"])
def test_a_model_in_few_bits_drafts_as_its_matrices_do(folder, quantize, layers):
    drafter = ModelDrafter(model=folder, quantize=quantize, layers=layers)
    drafter.bind(HFTarget(model=folder))
    assert drafter._loaded.native is not None
    matrices = [module for module in drafter._reader.model.modules() if isinstance(module, QuantizedLinear)]
    assert len(matrices) == 7 * (2 if layers else 4) + 1
    check_proposals(drafter, lambda rows: GivenSession.random(rows, VOCAB, 8), by_native_passes(drafter), expansions=3)


def test_rounding_is_coarser_with_fewer_bits_and_larger_groups(folder):
    exact = HFTarget(model=folder).model.model.layers[1].mlp.down_proj.weight  # of 64 inputs
    errors = []
    for options in (
        {"quantize": "int8"},
        {"quantize": "int4"},
        {"quantize": "int4", "group": 64},
        {"quantize": "int3"},
    ):
        drafter = ModelDrafter(model=folder, **options)
        if "group" in options:  # the other matrices have 32 inputs
            with pytest.raises(CompositionError, match="groups of 64 do not divide the 32 inputs"):
                drafter.bind(HFTarget(model=folder))
            continue
        drafter.bind(HFTarget(model=folder))
        blocks = drafter._reader.model.model.layers[1].mlp.down_proj.blocks
        errors.append(float((blocks.values() - exact).abs().mean()))
        assert drafter._reader.model.lm_head.bits == 8
    assert errors == sorted(errors) and errors[0] > 0


@pytest.mark.parametrize("options", [{"quantize": "int4"}, {"layers": [1]}, {"quantize": "int4", "layers": [1]}])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0}])
def test_output_is_the_target_s(folder, options, sampling):
    """With `match` the tokens are the plain target's at any temperature; rows join and leave."""
    target = HFTarget(model=folder)
    parts = {"sampling": {**sampling, "max_new_tokens": 12}, "run": {"batch": 2, "seed": 4}}
    drafting = specframe.compose(
        target=target,
        drafter=ModelDrafter(model=folder, **options),
        tree={"use": "fixed", "widths": [2, 1]},
        verifier="match",
        **parts,
    )
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8]]
    found = drafting.generate(prompts)
    assert found.tokens == drafting.plain().generate(prompts).tokens
    assert found.acceptance.accepted > 0


def small(tmp_path, name, layers):
    random_model(vocab=3, size=32, layers=layers, seed=7).float().save_pretrained(tmp_path / name)
    return str(tmp_path / name)


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{"layers": [1]}, {"quantize": "int4"}, {"quantize": "int3", "layers": [0, 2]}])
def test_it_keeps_the_contract_of_drafters(tmp_path, options):
    own = small(tmp_path, "own", 3)
    target = HFTarget(model=own, dtype="float64")
    check_drafter(lambda: ModelDrafter(model=own, **options), target=target.sibling)


def test_what_cannot_be_is_refused(folder):
    for layers in ([], [2, 1], [1, 1]):
        with pytest.raises(InputError, match="`layers` are ascending and at least one"):
            ModelDrafter(model=folder, layers=layers)
    for layers in ([4], [-1, 0]):
        with pytest.raises(CompositionError, match=r"the model has layers 0 .. 3"):
            ModelDrafter(model=folder, layers=layers).bind(HFTarget(model=folder))
    with pytest.raises(InputError, match="a multiple of 32, not 48"):
        ModelDrafter(model=folder, quantize="int4", group=48)
    with pytest.raises(InputError, match="it needs `quantize`"):
        ModelDrafter(model=folder, group=64)
    with pytest.raises(InputError, match="leave out layers and quantize"):
        ModelDrafter(fresh={"hidden_size": 64}, layers=[0])
    drafter = ModelDrafter(model=folder, quantize="int4")
    drafter.bind(HFTarget(model=folder))
    with pytest.raises(CompositionError, match="no weights that can be trained"):
        drafter.module  # noqa: B018


def test_other_architectures_lose_layers_too(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    target = HFTarget(model=str(tmp_path), dtype="float64")
    drafter = ModelDrafter(model=str(tmp_path), layers=[1], dtype="float64")
    drafter.bind(target)
    plain = copy.deepcopy(target.model)
    del plain.transformer.h[0]
    plain.transformer.h[0].attn.layer_idx, plain.config.n_layer = 0, 1
    check_proposals(drafter, lambda rows: GivenSession.random(rows, 40, 8), reading(plain), expansions=3)
