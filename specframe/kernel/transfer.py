"""Host-to-device copies without a sync, and numbers of trees on the host."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import memmove
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def sent(values: Tensor, device: torch.device | None) -> Tensor:
    """Copies a host tensor to the device; returns the tensor itself for the CPU or None.

    `values.to(device)` alone would make the host wait until a GPU has finished all earlier work.
    """
    if device is None or device.type == "cpu":
        return values
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def integers_like(tensor: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """The rows, all of one length, as int64 on the device of an int64 tensor: [B, N].

    On a CPU they are copied as bytes, which is faster when caches are cold.
    """
    if not tensor.is_cpu:
        return numbers_like(tensor, rows)
    found = tensor.new_empty(len(rows), len(rows[0]))
    numbers = array("q", chain.from_iterable(rows))
    if len(numbers) != found.numel():
        raise ValueError("rows of numbers are as long as each other")
    memmove(found.data_ptr(), numbers.buffer_info()[0], 8 * len(numbers))
    return found


def numbers_like(tensor: Tensor, values: Any) -> Tensor:
    """A tensor of these numbers, or nested lists of them, in the dtype and on the device of another."""
    if tensor.is_cpu:
        return tensor.new_tensor(values)
    return sent(tensor.new_empty(0, device="cpu").new_tensor(values), tensor.device)


def packed_like(like: Tensor, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Tensor:
    """Each row's `top` nodes, packed for `TokenTree.unpack`: [5, B, N] int64; shorter rows end in zeros."""
    width = max(map(len, tokens), default=1)
    tails = [[0] * (width - len(row)) for row in tokens]
    rows = [[*row, *tail] for part in (tokens, parents) for row, tail in zip(part, tails, strict=True)]
    rows += [[1] * (width - len(tail)) + tail for tail in tails]
    return integers_like(like, rows + [[0] * width] * (2 * len(tails))).view(5, len(tails), width)


def depths_from(parents: Sequence[int]) -> list[int]:
    """The number of edges between the root and each node of one row."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[max(parent, 0)] + 1 if depths else 0)
    return depths


def seen_from(parents: Sequence[Sequence[int]]) -> bytearray:
    """The nodes that each node sees, itself and its ancestors, for parents [B, N]: bytes [B, N, N]."""
    if not parents:
        return bytearray()
    count = len(parents[0])
    seen = bytearray(len(parents) * count * count)
    for first, row in zip(range(0, len(seen), count * count), parents, strict=True):
        for node, parent in enumerate(row):
            own, up = first + node * count, first + max(parent, 0) * count
            seen[own : own + count] = seen[up : up + count]
            seen[own + node] = 1
    return seen
