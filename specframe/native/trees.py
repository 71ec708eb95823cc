"""Trees in native code's memory: values of the kernel whose tensors are made once they are asked for."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_bool, c_int64, c_void_p
from math import prod

import torch
from torch import Tensor

from specframe.kernel.transfer import Columns


class _Trees(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("tokens", "parents", "depths", "valid", "ancestors")),
        *((name, c_int64) for name in ("nodes", "levels", "passes")),
    )


class NativeTrees:
    """The trees of a draft, as native code wrote them: a `TreeSource`."""

    def __init__(self, rows: int, most: int) -> None:
        """Room for the trees of so many rows, of at most so many nodes each."""
        self._rows, self._room = rows, rows * most
        self._numbers = (c_int64 * (3 * self._room))()  # tokens, parents and depths, [B, N] each
        self._marks = (c_bool * ((1 + most) * self._room))()  # valid, [B, N], and ancestors, [B, N, N]
        numbers, marks = ctypes.addressof(self._numbers), ctypes.addressof(self._marks)
        self.record = _Trees(*(numbers + 8 * self._room * part for part in range(3)), marks, marks + self._room)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and nodes."""
        return self._rows, self.record.nodes

    @property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """Where tokens, depths, ancestors, parents and valid begin."""
        record = self.record
        return record.tokens, record.depths, record.ancestors, record.parents, record.valid

    def tensor(self, name: str) -> Tensor:
        """A field; it shares the storage."""
        rows, nodes = self.shape
        if name == "draw":
            return torch.zeros(rows, nodes, dtype=torch.int64)
        if name in ("valid", "ancestors"):
            shape, start = ((rows, nodes), 0) if name == "valid" else ((rows, nodes, nodes), self._room)
            return torch.frombuffer(self._marks, dtype=torch.bool, count=prod(shape), offset=start).view(shape)
        start = 8 * self._room * ("tokens", "parent", "depth").index(name)
        return torch.frombuffer(self._numbers, dtype=torch.int64, count=rows * nodes, offset=start).view(rows, nodes)

    def columns(self) -> Columns:
        """Valid, parents and tokens of each row."""
        rows, nodes = self.shape
        spans = [slice(row * nodes, (row + 1) * nodes) for row in range(rows)]
        parents = [slice(self._room + span.start, self._room + span.stop) for span in spans]
        valid = [self._marks[span] for span in spans]
        return valid, [self._numbers[span] for span in parents], [self._numbers[span] for span in spans]
