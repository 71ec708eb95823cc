"""Limits of the native passes: supported models, and checks of tensors that are read and written by address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specframe.native.abi import DecoderSizes
from specframe.native.blocks import TILE
from specframe.native.linear import QuantizedLinear

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""transformers' model types whose layers native code computes."""
ROTARY = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings that are a table, independent of the text's length."""
LARGEST_HEAD = 256
FEW = 64
"""Number of integers up to which the host checks them faster than a kernel."""


def check_numbers(tensors: Iterable[Tensor], dtype: torch.dtype = torch.float32) -> None:
    """Raises ValueError for a tensor that is not contiguous, in this dtype and on a CPU."""
    for tensor in tensors:
        if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
            how = "contiguous" if tensor.is_contiguous() else "not contiguous"
            name = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"the native passes take contiguous {name} on a CPU, not {tensor.dtype} on {tensor.device}, {how}"
            )


def check_integers(name: str, numbers: Tensor, shape: tuple[int, ...], end: int) -> int:
    """Returns one more than the highest. Raises ValueError unless int64 on a CPU, of this shape, 0 to below `end`."""
    if numbers.dtype != torch.int64 or not numbers.is_cpu or numbers.shape != shape:
        raise ValueError(f"{name} are int64 {list(shape)} on a CPU, not {numbers.dtype} {list(numbers.shape)}")
    few = numbers.numel() <= FEW
    found = numbers.flatten().tolist() if few else [int(bound) for bound in numbers.aminmax()]
    low, high = min(found), max(found)
    if low < 0 or high >= end:
        raise ValueError(f"{name} are from 0 to {end - 1}, not from {low} to {high}")
    return high + 1


def check_lists(listed: Tensor, shape: DecoderSizes, rows: int, base: int) -> None:
    """Raises ValueError unless these are lists of slots before `base`, shared or for each layer and head."""
    layers, _, heads, slots = listed.shape
    if layers not in (1, shape.layers) or heads not in (1, shape.kv_heads):
        raise ValueError(f"lists of slots are for each layer and head, or for all, not {list(listed.shape)}")
    check_integers("listed slots", listed + 1, (layers, rows, heads, slots), base + 1)


def check_matrices(layers: Sequence[Mapping[str, QuantizedLinear]], shape: DecoderSizes) -> None:
    """Raises ValueError unless the layers' matrices have the decoder's sizes; a first one may read two states."""
    wide, heads = shape.width, shape.heads * shape.head_size
    sizes = {
        "qkv": (heads + 2 * shape.kv_heads * shape.head_size, (wide, 2 * wide)),
        "output": (wide, (heads,)),
        "gate_up": (2 * shape.mlp, (wide,)),
        "down": (wide, (shape.mlp,)),
    }
    for matrices in layers:
        for name, (outputs, inputs) in sizes.items():
            found = matrices[name]
            if found.out_features != outputs or found.in_features not in inputs:
                raise ValueError(f"{name} is [{outputs}, {inputs[0]}], not [{found.out_features}, {found.in_features}]")


def check_visible(sees: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless this is a mask, bool, of this shape on a CPU."""
    if sees.dtype != torch.bool or not sees.is_cpu or sees.shape != shape:
        raise ValueError(f"what nodes see is bool {list(shape)} on a CPU, not {sees.dtype} {list(sees.shape)}")


def check_room(name: str, begin: int, end: int, room: int) -> None:
    """Raises ValueError unless the cache has all slots from `begin` to below `end`."""
    if not 0 <= begin <= end <= room:
        raise ValueError(f"the cache has {room} {name}, not those from {begin} to {end - 1}")


def odd_outputs(matrices: Sequence[QuantizedLinear | nn.Linear]) -> str | None:
    """Returns why the native passes cannot multiply by one of the matrices, or None if they can."""
    if any(matrix.out_features % TILE for matrix in matrices):
        return f"one of its matrices has outputs that {TILE} does not divide"
    return None


def unlike(config: Any, rotary: nn.Module | None, layers: Sequence[Any]) -> str | None:
    """Returns the property of a model's layers that the native passes do not support, or None."""
    if config.model_type not in FAMILIES:
        return f"the layers of {config.model_type} are not Llama's"
    if (activation := getattr(config, "hidden_act", None)) != "silu":
        return f"its activation is {activation}"
    if any(layer.mlp.down_proj.out_features != config.hidden_size for layer in layers):
        return "its MLP gives other states than it takes"
    kind = getattr(rotary, "rope_type", "default")
    if kind not in ROTARY:
        return f"its rotary embedding, {kind}, changes with the length of the text"
    size: int = layers[0].self_attn.head_dim
    if size % TILE or size > LARGEST_HEAD:
        return f"its heads have {size} numbers, not a multiple of {TILE} up to {LARGEST_HEAD}"
    return None
