"""Numbers of the host: their copies to a device, which it does not wait for, and trees that are kept there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import memmove
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

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
    """The rows, which are as long as each other, in the dtype int64 of a tensor and on its device: [B, N].

    On a CPU they are copied as bytes, which takes less time when nothing is in the caches.
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
    """A tensor of these numbers, or lists of them, in the dtype and on the device of another."""
    if tensor.is_cpu:
        return tensor.new_tensor(values)
    return sent(tensor.new_empty(0, device="cpu").new_tensor(values), tensor.device)


Columns = tuple[list[list[bool]], list[list[int]], list[list[int]]]


@runtime_checkable
class TreeSource(Protocol):
    """A tree of `top` nodes in the host's memory: it makes a tensor once that is asked for; native code needs none."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and nodes, B and N."""

    @property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """The starts of tokens, depths, ancestors, parents and valid: int64 [B, N], or bytes [B, N, N] and [B, N]."""

    def tensor(self, name: str) -> Tensor:
        """A field of the tree, or its `depth` or `ancestors`."""

    def columns(self) -> Columns:
        """Valid, parent and tokens of each row."""
