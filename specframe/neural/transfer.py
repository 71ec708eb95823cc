"""Moves of numbers: of the host's to a device, and of entries from slot to slot on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.transfer import sent

GRAIN = 32768
"""Number of elements from which on PyTorch copies with several threads, which for less than a megabyte wait longer for
each other than the copy takes."""


def tensor_on(device: torch.device | None, values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of these numbers, or lists of them, on the device, by default the CPU; the host does not wait for it."""
    return sent(torch.tensor(values, dtype=dtype), device)


def move_slots(planes: Tensor, source: Sequence[int], destination: Sequence[int]) -> None:
    """Copies slots of a row's planes [P, H, S, D], all reads before all writes.

    In slices, by one thread: PyTorch's gather and scatter look up the place of every element, which takes ten times as
    long. Destinations differ, or are copies of the same source.
    """
    if list(source) == list(destination):
        return
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
    """Distances of a pair of slots from the pair before it."""
    (one, other), (last, least) = pairs[place], pairs[place - 1]
    return one - last, other - least
