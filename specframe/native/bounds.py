"""Bounds of the tensors that the native passes read and write by their addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from specframe.native.build import DecoderSizes
from specframe.native.linear import QuantizedLinear


def check_numbers(tensors: Iterable[Tensor], dtype: torch.dtype = torch.float32) -> None:
    """Raises ValueError for a tensor that is not contiguous, in a dtype and on a CPU."""
    for tensor in tensors:
        if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
            how = "contiguous" if tensor.is_contiguous() else "not contiguous"
            name = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"the native passes take contiguous {name} on a CPU, not {tensor.dtype} on {tensor.device}, {how}"
            )


def check_integers(name: str, numbers: Tensor, shape: tuple[int, ...], end: int) -> int:
    """One more than the highest. Raises ValueError unless these are int64 on a CPU, of this shape, 0 to below `end`."""
    if numbers.dtype != torch.int64 or not numbers.is_cpu or numbers.shape != shape:
        raise ValueError(f"{name} are int64 {list(shape)} on a CPU, not {numbers.dtype} {list(numbers.shape)}")
    low, high = (int(bound) for bound in numbers.aminmax())
    if low < 0 or high >= end:
        raise ValueError(f"{name} are from 0 to {end - 1}, not from {low} to {high}")
    return high + 1


def check_lists(listed: Tensor, shape: DecoderSizes, rows: int, base: int) -> None:
    """Raises ValueError unless these are lists of slots before `base`, for all layers and heads or for each."""
    layers, _, heads, slots = listed.shape
    if layers not in (1, shape.layers) or heads not in (1, shape.kv_heads):
        raise ValueError(f"lists of slots are for each layer and head, or for all, not {list(listed.shape)}")
    check_integers("listed slots", listed + 1, (layers, rows, heads, slots), base + 1)


def check_matrices(layers: Sequence[Mapping[str, QuantizedLinear]], shape: DecoderSizes) -> None:
    """Raises ValueError unless the layers' matrices are of the decoder's sizes; a first one may read two states."""
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


def check_sight(sees: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless this is a mask, bool, of this shape on a CPU."""
    if sees.dtype != torch.bool or not sees.is_cpu or sees.shape != shape:
        raise ValueError(f"what nodes see is bool {list(shape)} on a CPU, not {sees.dtype} {list(sees.shape)}")


def check_room(name: str, begin: int, end: int, room: int) -> None:
    """Raises ValueError unless the cache has all from `begin` to below `end`."""
    if not 0 <= begin <= end <= room:
        raise ValueError(f"the cache has {room} {name}, not those from {begin} to {end - 1}")
