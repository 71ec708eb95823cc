"""Copies of numbers from the host to a device, and of entries from slot to slot on a CPU."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import c_int64
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.transfer import sent
from specframe.native.build import are_loaded, load_native

GRAIN = 32768
"""Number of elements from which on PyTorch copies with several threads; below a megabyte, their synchronization takes
longer than the copy."""


def tensor_on(device: torch.device | None, values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of these numbers, or nested lists of them, on the device, by default the CPU, without a host sync."""
    return sent(torch.tensor(values, dtype=dtype), device)


def from_host(numbers: Sequence[int]) -> Tensor:
    """The numbers as a CPU tensor, [N] int64: with cold caches twice as fast as `torch.tensor`."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)


def move_slots(block: Tensor, row: int, source: Sequence[int], destination: Sequence[int]) -> None:
    """Copies slots of a row of a block [P, B, H, S, D] on a CPU, all reads before all writes.

    By native code if it is loaded, otherwise in slices, single-threaded: PyTorch's gather and scatter compute the
    address of every element, which takes ten times as long. Destinations differ unless their source is the same.
    """
    if list(source) == list(destination):
        return
    if are_loaded() and block.is_contiguous():
        move_natively(block, row, source, destination)
    else:
        move_slices(block[:, row], source, destination)


def move_natively(block: Tensor, row: int, source: Sequence[int], destination: Sequence[int]) -> None:
    """Moves slots of a contiguous block in one native call. Raises ValueError for a row or slot out of range."""
    planes, rows, heads, slots, size = block.shape
    places, bytes_of = (*source, *destination), block.element_size()
    if len(source) != len(destination) or not 0 <= row < rows or not 0 <= min(places) <= max(places) < slots:
        raise ValueError(f"slots are 0 to {slots - 1} of rows 0 to {rows - 1}, not {list(places)} of row {row}")
    slot, head = size * bytes_of, slots * size * bytes_of
    start = block.data_ptr() + row * heads * head
    lists = ((c_int64 * len(source))(*places) for places in (source, destination))
    load_native().specframe_move(start, planes, rows * heads * head, heads, head, slot, len(source), *lists)


def move_slices(planes: Tensor, source: Sequence[int], destination: Sequence[int]) -> None:
    """Moves the slots of a row's keys and values [P, H, S, D], in slices."""
    pairs = list(zip(source, destination, strict=True))
    starts = [place for place in range(len(pairs)) if not place or _steps(pairs, place) != (1, 1)]
    runs = [(*pairs[start], end - start) for start, end in pairwise([*starts, len(pairs)])]
    step = max(1, GRAIN // max(1, planes.shape[1] * planes.shape[3] * len(pairs)))
    for first in range(0, len(planes), step):
        part = planes[first : first + step]
        taken = [part[:, :, one : one + count].clone() for one, _, count in runs]
        for (_, other, count), values in zip(runs, taken, strict=True):
            part[:, :, other : other + count] = values


def _steps(pairs: Sequence[tuple[int, int]], place: int) -> tuple[int, int]:
    """The differences between a pair of slots and the pair before it."""
    (one, other), (last, least) = pairs[place], pairs[place - 1]
    return one - last, other - least
