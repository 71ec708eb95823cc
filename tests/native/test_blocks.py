"""Blocks hold GGUF's values exactly, and native code computes with them, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quants

from specframe.kernel.errors import InputError
from specframe.native import build as library
from specframe.native.blocks import Floats, PackedBlocks, round_to_blocks, unpack
from specframe.native.linear import QuantizedLinear
from specframe_gguf.blocks import pack

SHAPES = [(50, 64), (96, 160), (16, 32), (1, 32)]


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_0", 8), ("Q4_1", 4), ("Q5_0", 8), ("Q8_0", 8)])
def test_blocks_of_a_file_are_taken_over_exactly(kind, bits):
    weights = np.random.default_rng(0).normal(0, 1, (5, 96)).astype(np.float32)
    stored = quants.quantize(weights, GGMLQuantizationType[kind])
    blocks = PackedBlocks(*pack(stored, kind, bits))
    assert blocks.bits == bits
    assert torch.equal(blocks.values(), torch.from_numpy(dequantize(stored, GGMLQuantizationType[kind])))


@pytest.mark.parametrize(("kind", "size", "bits"), [("Q4_1", 20, 8), ("Q8_0", 34, 4), ("Q4_K", 144, 8)])
def test_blocks_of_another_layout_are_not(kind, size, bits):
    assert pack(np.zeros((2, size), np.uint8), kind, bits) is None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_packing_loses_nothing(bits, shape):
    blocks = round_to_blocks(torch.randn(shape), bits)
    again = unpack(blocks.pack(), shape[0], bits)
    assert torch.equal(again.codes, blocks.codes)
    assert torch.equal(again.values(), blocks.values())


@pytest.mark.parametrize(("bits", "steps"), [(4, 15), (8, 254)])
def test_rounding_is_to_the_nearest_step(bits, steps):
    weights = torch.randn(8, 64)
    weights[3] = 0.7  # a constant row has no steps
    blocks = round_to_blocks(weights, bits)
    groups = weights.unflatten(1, (-1, 32))
    span = 2 * groups.abs().amax(-1) if bits == 8 else groups.amax(-1) - groups.amin(-1)
    error = (blocks.values() - weights).unflatten(1, (-1, 32)).abs().amax(-1)
    assert (error <= 0.51 * span / steps + 2e-3).all()


@pytest.mark.parametrize(("bits", "group", "steps"), [(4, 32, 7), (4, 64, 15), (4, 96, 7), (8, 64, 15)])
def test_a_coarser_rounding_is_the_literal_one_number_by_number(bits, group, steps):
    """Of fewer steps, or of more inputs to a scale; kept as blocks of 32 and packed like any others."""
    weights = torch.randn(5, 192)
    blocks = round_to_blocks(weights, bits, group, steps)
    assert blocks.scale.shape == (5, 6)
    found = unpack(blocks.pack(), 5, bits).values()
    for row, start in [(row, start) for row in range(5) for start in range(0, 192, group)]:
        part = weights[row, start : start + group].tolist()
        if bits == 8:
            low, scale, least, most = 0.0, half(max(map(abs, part)) / 127), -127, 127
        else:
            low, scale, least, most = half(min(part)), half((max(part) - min(part)) / steps), 0, steps
        wanted = [low + scale * min(most, max(least, round((value - low) / scale))) for value in part]
        torch.testing.assert_close(found[row, start : start + group], torch.tensor(wanted), rtol=1e-4, atol=1e-4)


def half(value: float) -> float:
    return float(np.float16(value))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_that_of_the_unpacked_weights(bits, shape):
    layer = QuantizedLinear(round_to_blocks(torch.randn(shape), bits), torch.randn(shape[0]))
    x = torch.randn(3, 5, shape[1])
    steps = x.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) / 127
    rounded = ((x.unflatten(-1, (-1, 32)) / steps).round() * steps).flatten(-2)
    expected = torch.nn.functional.linear(rounded, layer.blocks.values(), layer.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-5)  # summed in another order


def rounded(bits):
    weight = torch.randn(133, 96)  # of nine tiles: two are multiplied at once, and the last one stands alone
    floats = {16: torch.bfloat16, 32: torch.float32}
    return QuantizedLinear(Floats(weight.to(floats[bits])) if bits in floats else round_to_blocks(weight, bits))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_floats_are_the_weights_that_they_were(dtype):
    weight = torch.randn(45, 64).to(dtype)
    layer = QuantizedLinear(Floats(weight))
    assert torch.equal(layer.blocks.values(), weight.float())
    x = torch.randn(21, 64).to(dtype)
    torch.testing.assert_close(layer(x.float()), x.float() @ weight.float().T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_a_row_is_the_same_whatever_stands_next_to_it(bits):
    layer = rounded(bits)
    x = torch.randn(19, 96)
    for count in (1, 2, 3, 7, 8, 9, 16):
        assert torch.equal(layer(x[:count]), layer(x)[:count]), count


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_without_vector_instructions_the_result_is_the_same(bits, monkeypatch):
    layer = rounded(bits)
    x = torch.randn(23, 96)
    fast = layer(x)
    portable = library.load_native((*library.FLAGS, "-DPORTABLE"))
    monkeypatch.setattr("specframe.native.linear.load_native", lambda: portable)
    torch.testing.assert_close(layer(x), fast, rtol=1e-5, atol=1e-5)


def test_gradients_reach_the_input_alone():
    layer = QuantizedLinear(round_to_blocks(torch.randn(48, 64), 4), torch.randn(48))
    x = torch.randn(2, 64, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.blocks.values().sum(0).expand(2, -1))
    assert not list(layer.parameters())


def test_chosen_outputs_are_a_layer_of_their_own():
    layer = QuantizedLinear(round_to_blocks(torch.randn(80, 64), 8), torch.randn(80))
    rows = torch.tensor([70, 3, 3, 12])
    x = torch.randn(4, 64)
    assert torch.equal(layer.take(rows)(x), layer(x)[:, rows])


@pytest.mark.parametrize(
    ("compiler", "message"),
    [("", r"there is no C\+\+ compiler"), ("false", "cannot compile the native library")],
)
def test_a_compiler_that_will_not_do_is_one_line(compiler, message, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    found = library.shutil.which
    monkeypatch.setattr(library.shutil, "which", lambda name: None if name.endswith("++") else found(name))
    with pytest.raises(InputError, match=message) as caught:
        library.load_native(("-unused",))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.so"))
