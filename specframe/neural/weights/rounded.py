"""Weights stored in 8 or 4 bits: a half and a third of bfloat16's size, in the precision that `quantize` uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from specframe.native.blocks import BLOCK, Bits, PackedBlocks, round_to_blocks

CODES, SCALE = ".codes", ".scale"
"""Suffixes of the names of a rounded matrix's two tensors: [N, K] uint8 and [N, K / 32] float16."""
PAIRS, LOW = ".pairs", ".low"
"""Suffixes for a matrix in 4 bits, with its scale: two codes per byte, [N, K / 2] uint8, and [N, K / 32] float16."""


def round_matrices(tensors: Mapping[str, Tensor], bits: Bits = 8) -> dict[str, Tensor]:
    """The tensors with each matrix quantized in blocks of 32 inputs; others, and indivisible ones, in bfloat16."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() == 2 and tensor.shape[1] % BLOCK == 0:
            blocks = round_to_blocks(tensor, bits)
            stored[name + SCALE] = blocks.scale
            if blocks.low is None:
                stored[name + CODES] = blocks.codes
            else:
                stored[name + PAIRS] = blocks.codes[:, 0::2] | blocks.codes[:, 1::2] << 4
                stored[name + LOW] = blocks.low
        else:
            stored[name] = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
    return {name: tensor.contiguous() for name, tensor in stored.items()}


def restore_matrices(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they were before `round_matrices`, up to rounding; matrices in float32."""
    whole = dict(stored)
    for name in _rounded(stored, CODES):
        whole[name] = PackedBlocks(whole.pop(name + CODES), whole.pop(name + SCALE), None).values()
    for name in _rounded(stored, PAIRS):
        pairs = whole.pop(name + PAIRS)
        codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1)
        whole[name] = PackedBlocks(codes, whole.pop(name + SCALE), whole.pop(name + LOW)).values()
    return whole


def read_rounded(file: Path) -> dict[str, Tensor] | None:
    """The restored tensors of a safetensors file with quantized matrices; None without these or without a file."""
    if not file.is_file():
        return None
    with safe_open(file, framework="pt") as stored:
        names = dict.fromkeys(stored.keys())
        if not _rounded(names, CODES) and not _rounded(names, PAIRS):
            return None
    return restore_matrices(load_file(file))


def restore_shapes(stored: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The shapes of the tensors as they were before `round_matrices`."""
    whole = dict(stored)
    for name in _rounded(stored, CODES):
        whole[name] = whole.pop(name + CODES)
        del whole[name + SCALE]
    for name in _rounded(stored, PAIRS):
        outputs, half = whole.pop(name + PAIRS)
        whole[name] = [outputs, 2 * half]
        del whole[name + SCALE], whole[name + LOW]
    return whole


def _rounded(stored: Mapping[str, object], codes: str) -> list[str]:
    """The names of the matrices whose codes are stored under this suffix."""
    others = (SCALE,) if codes == CODES else (SCALE, LOW)
    names = (name.removesuffix(codes) for name in stored if name.endswith(codes))
    return [name for name in names if all(name + other in stored for other in others)]
