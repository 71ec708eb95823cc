"""Blocks of every type that is read, next to the gguf package's own dequantization."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.native.blocks import PackedBlocks
from specframe_gguf import blocks
from specframe_gguf.blocks import KINDS


def random_bytes(kind, rows, count, seed):
    """Bytes [rows, bytes] of finite numbers: bytes at random are NaN where they make a scale of 16 bits."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (rows, count * KINDS[kind].size), dtype=np.uint8)


def oracle(raw, kind):
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])).view(len(raw), -1)


def same(found, wanted):
    return torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_all_types_have_the_sizes_of_the_format():
    for number, name in blocks.TYPE_NAMES.items():
        assert gguf.GGMLQuantizationType(number).name == name
        if name in KINDS:
            kind = KINDS[name]
            assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (kind.numbers, kind.size)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 5), count=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_numbers_are_those_of_the_gguf_package_bit_by_bit(kind, rows, count, seed):
    raw = random_bytes(kind, rows, count, seed)
    assert same(blocks.unpack(raw, kind, torch.float32), oracle(raw, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_without_a_seam(kind, monkeypatch):
    raw = random_bytes(kind, 7, 3, 1)
    monkeypatch.setattr(blocks, "CHUNK", 2 * KINDS[kind].numbers)
    assert same(blocks.unpack(raw, kind, torch.float32), oracle(raw, kind))


def test_a_dtype_rounds_the_numbers_once():
    raw = random_bytes("Q6_K", 3, 2, 2)
    assert same(blocks.unpack(raw, "Q6_K", torch.bfloat16), oracle(raw, "Q6_K").bfloat16())


def finite(kind, rows=6, count=3):
    raw = random_bytes(kind, rows, count, 3).reshape(-1, KINDS[kind].size)
    halves = np.random.default_rng(4).uniform(0.001, 0.1, (len(raw), 2)).astype(np.float16).view(np.uint8)
    raw[:, : 4 if kind in ("Q4_1", "Q4_K") else 2] = halves[:, : 4 if kind in ("Q4_1", "Q4_K") else 2]
    return raw.reshape(rows, -1)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8), ("Q5_0", 8), ("Q4_0", 8)])
def test_packed_blocks_are_the_numbers_exactly(kind, bits):
    raw = finite(kind)
    packed = PackedBlocks(*blocks.pack(raw, kind, bits))
    assert packed.bits == bits
    torch.testing.assert_close(packed.values(), oracle(raw, kind), rtol=1e-6, atol=0)


def test_q4_k_keeps_its_codes_and_rounds_its_scales():
    raw = finite("Q4_K")
    packed, wanted = PackedBlocks(*blocks.pack(raw, "Q4_K", 4)), oracle(raw, "Q4_K")
    spans = wanted.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)
    off = (packed.values() - wanted).unflatten(1, (-1, 32)).abs()
    assert (off <= spans.clamp(min=1e-3) / 500).all()
    assert (off > 0).any(), "if it were exact, the documentation would have to say so"


@pytest.mark.parametrize(
    ("kind", "bits"), [("Q6_K", 4), ("Q6_K", 8), ("Q5_0", 4), ("Q4_K", 8), ("F16", 8), ("Q8_0", 4)]
)
def test_blocks_of_another_layout_are_not_packed(kind, bits):
    assert blocks.pack(random_bytes(kind, 2, 2, 5), kind, bits) is None
