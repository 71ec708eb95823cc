"""Blocks of a GGUF file's tensors (ggml's quantization types), unpacked or repacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

TYPE_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""Names of ggml's types, by number."""
CHUNK = 1 << 18
"""Number of values unpacked at once, small enough for the processor's cache."""


@dataclass(frozen=True)
class Kind:
    """A block type: the number of values and bytes of a block, and the function that unpacks blocks [B, size]."""

    numbers: int
    size: int
    unpack: Callable[[Tensor], Tensor]
    """Function that returns float32 [B, numbers]."""


class PackedMatrix(NamedTuple):
    """A matrix [N, K] in the layout of the native passes: weight = scale * code + low, or scale * (code - 128)."""

    codes: Tensor  # [N, K] uint8
    scale: Tensor  # [N, K / 32] float16
    low: Tensor | None  # [N, K / 32] float16; None with 8 bits

    def take(self, rows: slice | Tensor) -> PackedMatrix:
        """Returns the matrix of these outputs alone."""
        return PackedMatrix(self.codes[rows], self.scale[rows], None if self.low is None else self.low[rows])


def unpack(raw: np.ndarray[Any, Any], name: str, dtype: torch.dtype) -> Tensor:
    """Unpacks a tensor's bytes [N, bytes], of a type in `KINDS`, to [N, K] of this dtype."""
    kind = KINDS[name]
    blocks = raw.reshape(-1, kind.size)
    out = torch.empty(len(blocks), kind.numbers, dtype=dtype)
    step = max(1, CHUNK // kind.numbers)
    for start in range(0, len(blocks), step):
        piece = torch.from_numpy(np.array(blocks[start : start + step]))  # copied, because the file is mapped read-only
        out[start : start + step] = kind.unpack(piece)
    return out.view(len(raw), -1)


def pack(raw: np.ndarray[Any, Any], name: str, bits: int) -> PackedMatrix | None:
    """Repacks a tensor's bytes [N, bytes] in the layout of the native passes; None if they do not fit it.

    Q4_0 and Q4_1 in 4 bits, and Q8_0, Q5_0 and Q4_0 in 8 are exact. Q4_K in 4 bits keeps its codes; its scales,
    products of 6 and 16 bits, are rounded to 16, which changes a weight by at most a 1,000th of its block's range.
    """
    kind = KINDS[name]
    read = {4: FOUR_BITS, 8: EIGHT_BITS}.get(bits, {}).get(name)
    if read is None:
        return None
    codes, scale, low = read(torch.from_numpy(np.array(raw.reshape(-1, kind.size))))
    rows = len(raw)
    return PackedMatrix(codes.view(rows, -1), scale.view(rows, -1), None if low is None else low.view(rows, -1))


def _half(raw: Tensor, place: int) -> Tensor:
    """Returns the 16-bit float at a byte of every block: float32 [B, 1]."""
    return raw[:, place : place + 2].contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """Returns the 4-bit codes of bytes [B, n], all low halves before all high ones: uint8 [B, 2 n]."""
    return torch.cat([raw & 15, raw >> 4], 1)


def _fifth_bits(raw: Tensor) -> Tensor:
    """Returns the bits of 4 bytes [B, 4], each shifted to a code's fifth bit: uint8 [B, 32]."""
    bits = raw[:, :, None] >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).flatten(1) << 4


def _q4_0(raw: Tensor) -> Tensor:
    return _half(raw, 0) * (_nibbles(raw[:, 2:]).float() - 8)


def _q4_1(raw: Tensor) -> Tensor:
    return _half(raw, 0) * _nibbles(raw[:, 4:]).float() + _half(raw, 2)


def _q5_0_codes(raw: Tensor) -> Tensor:
    return _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])


def _q5_0(raw: Tensor) -> Tensor:
    return _half(raw, 0) * (_q5_0_codes(raw).float() - 16)


def _q5_1(raw: Tensor) -> Tensor:
    codes = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return _half(raw, 0) * codes.float() + _half(raw, 2)


def _q8_0(raw: Tensor) -> Tensor:
    return _half(raw, 0) * raw[:, 2:].contiguous().view(torch.int8).float()


def _scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the scales and minima of the eight parts of a Q4_K or Q5_K block: float32 [B, 8, 1] each.

    A block begins with a scale for the scales and one for the minima, followed by both in 6 bits, packed into 12 bytes.
    """
    first, second, third = raw[:, 4:16].split(4, 1)
    scales = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], 1)
    lows = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], 1)
    return (_half(raw, 0) * scales.float())[..., None], (_half(raw, 2) * lows.float())[..., None]


def _k_nibbles(raw: Tensor) -> Tensor:
    """Returns the 4-bit codes of bytes [B, 128]: of 32 bytes each, low halves, then high ones; uint8 [B, 8, 32]."""
    quarters = raw.unflatten(1, (4, 1, 32))
    return torch.cat([quarters & 15, quarters >> 4], 2).flatten(1, 2)


def _q4_k(raw: Tensor) -> Tensor:
    scale, low = _scales(raw)
    return (scale * _k_nibbles(raw[:, 16:]).float() - low).flatten(1)


def _q5_k(raw: Tensor) -> Tensor:
    scale, low = _scales(raw)
    fifth = (raw[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None]) & 1  # [B, 8, 32]
    return (scale * (_k_nibbles(raw[:, 48:]) | fifth << 4).float() - low).flatten(1)


def _q6_k(raw: Tensor) -> Tensor:
    low = raw[:, :128].unflatten(1, (2, 1, 64))
    low = torch.cat([low & 15, low >> 4], 2).view(-1, 8, 32)
    high = raw[:, 128:192].unflatten(1, (2, 1, 32)) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    codes = low | (high.view(-1, 8, 32) & 3) << 4  # [B, 8, 32]
    scale = _half(raw, 208) * raw[:, 192:208].contiguous().view(torch.int8).float()  # [B, 16]
    return (scale[..., None] * (codes.view(-1, 16, 16).float() - 32)).flatten(1)


KINDS = {
    "F32": Kind(1, 4, lambda raw: raw.view(torch.float32)),
    "F16": Kind(1, 2, lambda raw: raw.view(torch.float16).float()),
    "BF16": Kind(1, 2, lambda raw: raw.view(torch.bfloat16).float()),
    "Q4_0": Kind(32, 18, _q4_0),
    "Q4_1": Kind(32, 20, _q4_1),
    "Q5_0": Kind(32, 22, _q5_0),
    "Q5_1": Kind(32, 24, _q5_1),
    "Q8_0": Kind(32, 34, _q8_0),
    "Q4_K": Kind(256, 144, _q4_k),
    "Q5_K": Kind(256, 176, _q5_k),
    "Q6_K": Kind(256, 210, _q6_k),
}
"""The supported types, by name."""

Packed = tuple[Tensor, Tensor, Tensor | None]
"""Codes [B, numbers], and scales and lows in 16 bits, [B, numbers / 32]."""


def _pack_q4_0(raw: Tensor) -> Packed:
    scale = _half(raw, 0).half()
    return _nibbles(raw[:, 2:]), scale, -8 * scale


def _pack_q4_1(raw: Tensor) -> Packed:
    return _nibbles(raw[:, 4:]), _half(raw, 0).half(), _half(raw, 2).half()


def _pack_q4_k(raw: Tensor) -> Packed:
    scale, low = _scales(raw)
    return _k_nibbles(raw[:, 16:]).flatten(1), scale[..., 0].half(), -low[..., 0].half()


def _pack_codes(codes: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Packed]:
    """Returns the function that packs blocks of a scale and codes around 128."""
    return lambda raw: (codes(raw), _half(raw, 0).half(), None)


FOUR_BITS: dict[str, Callable[[Tensor], Packed]] = {"Q4_0": _pack_q4_0, "Q4_1": _pack_q4_1, "Q4_K": _pack_q4_k}
EIGHT_BITS: dict[str, Callable[[Tensor], Packed]] = {
    "Q8_0": _pack_codes(lambda raw: raw[:, 2:] ^ 128),  # two's complement plus 128
    "Q5_0": _pack_codes(lambda raw: _q5_0_codes(raw) + 112),
    "Q4_0": _pack_codes(lambda raw: _nibbles(raw[:, 2:]) + 120),
}
