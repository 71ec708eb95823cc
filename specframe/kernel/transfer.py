"""Numbers of the host: their copies to a device, which it does not wait for, and trees that are kept there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import memmove
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

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
Number = TypeVar("Number", bound=int)


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


class HostTrees:
    """Trees of `top` nodes that were grown on the host: a `TreeSource`. Shorter rows end in invalid nodes.

    Args:
        like: an int64 tensor on a CPU; the trees' tensors are on it, too.
        tokens: those of each row's nodes, the root's first.
        parents: of each node; -1 of the root.
        valid: of each node; none: all are.
    """

    def __init__(
        self,
        like: Tensor,
        tokens: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
        valid: Sequence[Sequence[bool]] | None = None,
    ) -> None:
        width = max(map(len, tokens), default=1)
        self.shape = len(tokens), width
        self.like = like
        real = [[True] * len(row) for row in tokens] if valid is None else valid
        self._columns = _padded(real, width, False), _padded(parents, width, 0), _padded(tokens, width, 0)
        valid, parents, tokens = self._columns
        numbers = tokens, parents, [*map(depths_from, parents)]
        self._numbers = array("q", chain.from_iterable(chain.from_iterable(numbers)))
        self._marks = array("B", bytes(chain.from_iterable(valid)) + seen_from(parents))

    @property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """The starts of tokens, depths, ancestors, parents and valid."""
        count = self.shape[0] * self.shape[1]
        numbers, marks = self._numbers.buffer_info()[0], self._marks.buffer_info()[0]
        return numbers, numbers + 16 * count, marks + count, numbers + 8 * count, marks

    def tensor(self, name: str) -> Tensor:
        """A field, as a copy."""
        if name == "draw":
            return self.like.new_zeros(self.shape)
        tokens, depths, ancestors, parents, valid = self.addresses
        if name in ("valid", "ancestors"):
            marks = self.like.new_zeros(self.shape if name == "valid" else (*self.shape, self.shape[1])).bool()
            memmove(marks.data_ptr(), valid if name == "valid" else ancestors, marks.numel())
            return marks
        numbers = self.like.new_empty(self.shape)
        memmove(numbers.data_ptr(), {"tokens": tokens, "parent": parents, "depth": depths}[name], 8 * numbers.numel())
        return numbers

    def columns(self) -> Columns:
        """Valid, parents and tokens of each row: the trees' own lists, not to be changed."""
        return self._columns


def like_of(source: TreeSource) -> Tensor:
    """An int64 tensor on the device of a source's tensors."""
    return source.like if isinstance(source, HostTrees) else source.tensor("tokens")


def _padded(rows: Sequence[Sequence[Number]], width: int, rest: Number) -> list[list[Number]]:
    return [[*row, *[rest] * (width - len(row))] for row in rows]


def depths_from(parents: Sequence[int]) -> list[int]:
    """The number of edges between the root and each node of one row."""
    depths: list[int] = []
    for above in parents:
        depths.append(depths[max(above, 0)] + 1 if depths else 0)
    return depths


def seen_from(parents: Sequence[Sequence[int]]) -> bytearray:
    """The nodes that each node sees, itself and those above it, of rows of parents [B, N]: bytes [B, N, N]."""
    if not parents:
        return bytearray()
    count = len(parents[0])
    seen = bytearray(len(parents) * count * count)
    for first, row in zip(range(0, len(seen), count * count), parents, strict=True):
        for node, above in enumerate(row):
            own, up = first + node * count, first + max(above, 0) * count
            seen[own : own + count] = seen[up : up + count]
            seen[own + node] = 1
    return seen
