"""Copies to a device that the host does not wait for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def sent(values: Tensor, device: torch.device | None) -> Tensor:
    """The host's tensor on the device, itself where that is None.

    `values.to(device)` makes the host wait for a GPU, until all that it was asked before is done.
    """
    if device is None or device.type == "cpu":
        return values
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def integers_like(tensor: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """The rows, which are as long as each other, as int64 [B, N] on the device of a tensor.

    On a CPU they are read where they stand, which takes a quarter of the time when nothing is in the caches.
    """
    import torch

    if not tensor.is_cpu:
        return sent(torch.tensor(rows), tensor.device)
    return torch.frombuffer(array("q", chain.from_iterable(rows)), dtype=torch.int64).view(len(rows), -1)


def numbers_like(tensor: Tensor, values: Any) -> Tensor:
    """A tensor of these numbers, or lists of them, in the dtype and on the device of another."""
    import torch  # a sixth of a second, which a command that shows its help need not wait

    return sent(torch.tensor(values, dtype=tensor.dtype), tensor.device)
