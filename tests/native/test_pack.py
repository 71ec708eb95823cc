"""Matrices that are moved into one memory: the same products, also of the layers whose storage they share."""

from __future__ import annotations

import copy
import mmap

import pytest
import torch
from torch import nn

from specframe.native.blocks import Bits, Floats, round_to_blocks
from specframe.native.linear import (
    LINE,
    PAGE,
    PackedLinear,
    QuantizedLinear,
    pack_floats,
    pack_together,
    unpack_again,
)
from specframe.neural.quantize import round_layers

INPUTS = 512


def matrix(outputs: int, bits: Bits) -> QuantizedLinear:
    weight = torch.randn(outputs, INPUTS)
    if bits < 16:
        return QuantizedLinear(round_to_blocks(weight, bits))
    return QuantizedLinear(Floats(weight if bits == 32 else weight.bfloat16()))


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_products_stay_and_weights_are_next_to_each_other(bits: Bits) -> None:
    torch.manual_seed(0)
    parts = [matrix(outputs, bits) for outputs in (4096, 1024)]
    joined, other = QuantizedLinear.join(parts), matrix(4096, bits)
    x = torch.randn(3, INPUTS)
    before = [layer.product(x) for layer in (joined, other, *parts)]
    pack_together([joined, other])
    for layer, product in zip((joined, other, *parts), before, strict=True):
        assert torch.equal(layer.product(x), product)
    assert parts[0].packed.data_ptr() == joined.packed.data_ptr()
    assert parts[1].packed.data_ptr() == joined.packed.data_ptr() + parts[0].packed.nbytes
    if hasattr(mmap, "MADV_HUGEPAGE") and joined.packed.nbytes + other.packed.nbytes >= PAGE:
        gap = other.packed.data_ptr() - joined.packed.data_ptr() - joined.packed.nbytes
        assert 0 <= gap < LINE and other.packed.data_ptr() % LINE == 0


def test_what_fits_into_a_page_stays_where_it_is() -> None:
    small = matrix(64, 16)
    place = small.packed.data_ptr()
    pack_together([small])
    assert small.packed.data_ptr() == place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layer_has_the_weight_that_it_had(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(64, 40, dtype=dtype), nn.Linear(40, 8, dtype=torch.float64)).requires_grad_(False)
    weight, before = model[0].weight.clone(), model[0](x := torch.randn(3, 64, dtype=dtype))
    pack_floats(model)
    packed = model[0]
    assert isinstance(packed, PackedLinear) and type(model[1]) is nn.Linear
    assert torch.equal(packed.weight, weight) and torch.equal(packed(x), before)
    assert packed.weight is not packed.weight  # unpacked each time
    with torch.inference_mode():
        unpack_again(model)
    assert packed.weight is packed.weight
    packed(states := x.requires_grad_()).sum().backward()
    torch.testing.assert_close(states.grad, weight.sum(0).expand(3, -1))


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_layers_are_rounded_as_plain_ones(bits: int) -> None:
    plain = nn.Sequential(nn.Linear(64, 32, dtype=torch.bfloat16)).requires_grad_(False)
    packed = copy.deepcopy(plain)
    pack_floats(packed)
    wanted, found = (round_layers(model, f"int{bits}")[0] for model in (plain, packed))
    assert isinstance(found, QuantizedLinear) and found.bits == bits and torch.equal(found.packed, wanted.packed)


def test_without_memory_for_it_weights_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    large = matrix(4096, 32)
    place = large.packed.data_ptr()
    pack_together([large])
    assert large.packed.nbytes >= PAGE and large.packed.data_ptr() == place
