"""Weights stored in 8 bits: half the size of bfloat16, and the format in which `quantize: int8` decodes anyway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from specframe.native.blocks import BLOCK, PackedBlocks, round_to_blocks

CODES, SCALE = ".codes", ".scale"
"""Suffixes of the names of a rounded matrix's two tensors: [N, K] uint8 and [N, K / 32] float16."""


def round_matrices(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with each matrix in 8 bits, in blocks of 32 inputs; others, not divisible by blocks, in bfloat16."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() == 2 and tensor.shape[1] % BLOCK == 0:
            blocks = round_to_blocks(tensor, 8)
            stored |= {name + CODES: blocks.codes, name + SCALE: blocks.scale}
        else:
            stored[name] = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
    return {name: tensor.contiguous() for name, tensor in stored.items()}


def restore_matrices(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they were before `round_matrices`, but for the rounding: matrices in float32."""
    whole = dict(stored)
    for name in _rounded(stored):
        whole[name] = PackedBlocks(whole.pop(name + CODES), whole.pop(name + SCALE), None).values()
    return whole


def read_rounded(file: Path) -> dict[str, Tensor] | None:
    """The tensors of a safetensors file with matrices in 8 bits, restored; None for a file without, or no such file."""
    if not file.is_file():
        return None
    with safe_open(file, framework="pt") as stored:
        if not _rounded(dict.fromkeys(stored.keys())):
            return None
    return restore_matrices(load_file(file))


def restore_shapes(stored: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The shapes of the tensors as they were before `round_matrices`."""
    whole = dict(stored)
    for name in _rounded(stored):
        whole[name] = whole.pop(name + CODES)
        del whole[name + SCALE]
    return whole


def _rounded(stored: Mapping[str, object]) -> list[str]:
    """The names of the matrices that are stored in 8 bits."""
    names = (name.removesuffix(CODES) for name in stored if name.endswith(CODES))
    return [name for name in names if name + SCALE in stored]
