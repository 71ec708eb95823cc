"""Drafters whose matrices have few bits: what they compute, what stays, and where it cannot be done."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.verifiers.match import Match
from specframe.decoding.compose import compose
from specframe.kernel.errors import InputError
from specframe.native.linear import QuantizedLinear
from specframe.neural import quantize as rounding
from specframe.neural.cache import SlotCache
from specframe.neural.layer import DecoderLayer
from specframe.neural.quantize import round_layers
from specframe.neural.weights import checkpoint
from specframe.testing import shake
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.wide import WideLayer
from specframe_falcon.drafter import Falcon
from specframe_parallelspec.drafter import ParallelSpec

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]


@pytest.fixture
def target() -> HFTarget:
    return HFTarget.from_model(random_model(vocab=50, size=64), None)


def layers(network: nn.Module) -> list[QuantizedLinear]:
    return [part for part in network.modules() if isinstance(part, QuantizedLinear)]


@pytest.mark.sampled
@pytest.mark.parametrize("quantization", ["int4", "int8"])
@pytest.mark.parametrize("kind", [Eagle, Eagle3, Falcon, ParallelSpec])
def test_texts_are_those_of_the_target(kind, quantization, target):
    head = Trimmed(keep=40, quantize=quantization)
    drafter = kind(quantize=quantization, head=head)
    tree = Dynamic(depth=3, width=2, nodes=6)
    for temperature in (0.0, 1.0):
        sampling = {"temperature": temperature, "max_new_tokens": 24}
        pipeline = compose(target=target, drafter=drafter, tree=tree, verifier=Match(), sampling=sampling)
        plain = compose(target=target, drafter="none", verifier=Match(), sampling=sampling)
        assert pipeline.generate(PROMPTS).tokens == plain.generate(PROMPTS).tokens
    assert layers(drafter.decoding) and not layers(drafter.network)


def test_its_predictions_are_near_those_of_the_weights(target):
    """A rounded weight is off by half a step of its block at the most; what is computed with it, by little."""
    drafter = Falcon(quantize="int8")
    drafter.bind(target)
    exact, rounded = drafter.network, drafter.decoding
    pairs = torch.randn(3, 2, 128, dtype=torch.float64)
    with torch.no_grad():
        outputs, (hidden, cell) = rounded.inputs(pairs, rounded.start(3))
        expected, (other_hidden, other_cell) = exact.inputs(pairs, exact.start(3))
    for found, wanted in ((outputs, expected), (hidden, other_hidden), (cell, other_cell)):
        assert not torch.equal(found, wanted)
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0)


def plain_layer(config):
    return DecoderLayer(config)


def two_layers(config):
    return DecoderLayer(config, 2)


def layer_without_first_norm(config):
    layer = DecoderLayer(config)
    layer.layer.input_layernorm = nn.Identity()
    return layer


def wide_layer(config):
    return WideLayer(config, norm_before_residual=False)


def wide_layer_from_the_norm(config):
    return WideLayer(config, norm_before_residual=True)


def wide_layer_and_another(config):
    layer = wide_layer(config)
    layer.extend(config, 2)
    return layer


MADE = [plain_layer, two_layers, layer_without_first_norm, wide_layer, wide_layer_from_the_norm, wide_layer_and_another]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("make", MADE)
def test_a_layer_is_what_its_parts_compute(family, make):
    """Native code's layers over a cache, masks and slots at random: what transformers makes of the same matrices."""
    layer = make(random_model(family, vocab=8, size=64, layers=1).config)
    shake(layer)
    wide = isinstance(layer, WideLayer)
    whole, parts = round_layers(layer, "int8"), round_layers(layer, "int8")
    assert whole.packed
    for one in (parts, *parts.upper):
        one.packed = None
    caches = [SlotCache(layer.count, 40, 5) for _ in range(2)]
    for step, slots in enumerate((0, torch.stack([torch.randperm(20)[:3] + 12 for _ in range(4)]), 35)):
        x = torch.randn(4, 12 if step == 0 else 3, 128 if wide else 64)
        positions = torch.randint(0, 60, x.shape[:2])
        width = (12, 32, 38)[step]
        own = torch.arange(x.shape[1]).expand(4, -1) + slots if isinstance(slots, int) else slots
        mask, before = (
            (torch.rand(4, 1, x.shape[1], width) < 0.4).scatter_(3, own[:, None, :, None], True) for _ in range(2)
        )
        outputs = []
        for made, cache in zip((whole, parts), caches, strict=True):
            cache.aim(slots, width, 1)
            with torch.no_grad():
                outputs.append(made(x, positions, mask, cache, before))
        # An activation that is rounded to 8 bits may come out a step higher or lower.
        off = (outputs[0] - outputs[1]).norm(dim=-1) / outputs[1].norm(dim=-1)
        assert off.max() < 0.01 and not torch.equal(*outputs)


@pytest.mark.parametrize("own_head", [True, False])
def test_eagle3_drafts_with_matrices_in_blocks(target, own_head):
    """Native code computes its whole layer, whose attention reads twice its width, while it decodes."""
    drafter = Eagle3(quantize="int8", own_head=own_head)
    drafter.bind(target)
    exact, rounded = drafter.network, drafter.decoding
    assert rounded.layer.packed and len(layers(rounded)) == 8 + own_head
    x, positions = torch.randn(2, 5, 128), torch.arange(5).expand(2, -1)
    with torch.no_grad():
        found, wanted = (network.hidden(network.layer(x, positions, None)) for network in (rounded, exact))
    assert 0 < (found - wanted).norm() / wanted.norm() < 0.03


@pytest.mark.parametrize("bits", [4, 8])
def test_fspad_drafts_with_matrices_in_blocks(bits, target, tmp_path):
    """Its layer's output is twice as wide as native code's: PyTorch computes it, of matrices in blocks."""
    drafter = Eagle(feature_sampling=True, partial_alignment=True)
    drafter.bind(target)
    shake(drafter.module, by=0.1)
    drafter.save(tmp_path / "whole")
    checkpoint.shrink(tmp_path / "whole", tmp_path / "few", bits)
    stored = Eagle(weights=str(tmp_path / "few"), feature_sampling=True, partial_alignment=True, quantize=f"int{bits}")
    stored.bind(target)
    assert stored.decoding.layer.packed is None and len(layers(stored.decoding)) == 4 + 7
    pairs = torch.randn(2, 5, 128, dtype=torch.float64)
    with torch.no_grad():
        found, wanted = (network(pairs) for network in (stored.decoding, drafter.network))
    assert found.shape == (2, 5, 128)
    assert 0 < (found - wanted).norm() / wanted.norm() < {4: 0.3, 8: 0.03}[bits]
    pipeline = compose(target=target, drafter=stored, tree=Dynamic(depth=3, width=2, nodes=6), verifier=Match())
    plain = compose(target=target, drafter="none", verifier=Match())
    assert pipeline.generate(PROMPTS).tokens == plain.generate(PROMPTS).tokens


def test_weights_that_change_are_rounded_again(target):
    drafter = Eagle(quantize="int8")
    drafter.bind(target)
    first = drafter.decoding
    assert drafter.decoding is first
    with torch.no_grad():
        drafter.network.fc.weight.mul_(2)
    again = drafter.decoding
    assert again is not first
    torch.testing.assert_close(again.fc.blocks.values(), 2 * first.fc.blocks.values(), atol=1e-3, rtol=1e-2)


def test_widths_that_blocks_do_not_divide_stay():
    rounded = round_layers(nn.Sequential(nn.Linear(32, 8), nn.Linear(8, 3)), "int8")
    assert isinstance(rounded[0], QuantizedLinear) and type(rounded[1]) is nn.Linear


def test_without_a_compiler_it_stays_as_it_is(target, monkeypatch, caplog):
    def missing() -> None:
        raise InputError("there is no C++ compiler (g++)")

    monkeypatch.setattr(rounding, "load_native", missing)
    drafter = Eagle(quantize="int4")
    drafter.bind(target)
    assert drafter.decoding is drafter.network
    assert "drafter eagle stays in the target's precision" in caplog.text


def test_on_another_device_it_stays_as_it_is():
    assert rounding.rounds("drafter eagle", "int8", torch.device("cpu"))
    assert not rounding.rounds("drafter eagle", "int8", torch.device("cuda"))


def test_a_drafter_that_names_bits_drafts_on_another_device():
    target = HFTarget.from_model(random_model(vocab=96, size=64).to("meta"))
    drafter = Eagle(quantize="int8")
    drafter.bind(target)
    assert drafter.decoding is drafter.network


def test_rounding_is_the_same_within_autocast():
    """A training in half precision validates with rounded matrices."""
    network = nn.Sequential(nn.Linear(64, 40))
    with torch.autocast("cpu", torch.bfloat16):
        within = round_layers(network, "int8")
    assert torch.equal(within[0].packed, round_layers(network, "int8")[0].packed)
