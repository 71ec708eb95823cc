"""Mean keys of a text's pieces, each computed once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.neural import ChunkKeys
from specframe.plugin import CommittedMemory


class MeanKeys:
    """The mean key of every whole piece of the rows' texts, for each layer and key head.

    Args:
        size: tokens of a piece; piece i begins at token i * size.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._means = torch.zeros(0)  # [layers, slots, key heads, pieces, D]
        self._known: list[int] = []  # number of pieces of each row whose means are computed

    def clear(self) -> None:
        """Drops all rows."""
        self._means, self._known = torch.zeros(0), []

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        if self._known:
            self._means[:, : len(rows)] = self._means[:, rows]
            self._known = [self._known[row] for row in rows.tolist()]

    def of(self, memory: CommittedMemory, rows: Sequence[int], wanted: Sequence[int], slots: int) -> Tensor:
        """Returns the means of the first `wanted` pieces of rows, of at most `slots`: [layers, R, heads, C, D].

        Values after a row's own pieces are undefined. New rows follow the others.
        """
        keys, size = memory.keys, self._size
        if size == 1:
            return keys[:, _few(rows), :, : max(*wanted, 1)]
        self._known += [0] * (max(rows) + 1 - len(self._known))
        begin, end = min(self._known[row] for row in rows), max(wanted)
        if len(self._means) != len(keys) or self._means.shape[3] < end:
            more = keys.new_zeros(len(keys), slots, keys.shape[2], keys.shape[3] // size, keys.shape[4])
            if len(self._means) == len(keys):
                more[:, :, :, : self._means.shape[3]] = self._means
            self._means = more
        which = _few(rows)
        if end > begin:
            fresh = keys[:, which, :, begin * size : end * size].unflatten(3, (end - begin, size))
            self._means[:, which, :, begin:end] = fresh.mean(4)
        for row, known in zip(rows, wanted, strict=True):
            self._known[row] = known
        return self._means[:, which, :, : max(end, 1)]


class PackedMeans:
    """The means in bfloat16, as native code reads them when it ranks chunks.

    Args:
        size: tokens of a piece; piece i begins at token i * size.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._chunk_keys: ChunkKeys | None = None
        self._known: list[int] = []  # number of pieces of each row whose means are computed

    def clear(self) -> None:
        """Drops all rows."""
        self._chunk_keys, self._known = None, []

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        if self._chunk_keys is not None:
            self._chunk_keys.keep(rows)
            self._known = [self._known[row] for row in rows.tolist()]

    def read(self, memory: CommittedMemory, rows: range, wanted: Sequence[int], slots: int) -> ChunkKeys:
        """Returns the means of the first `wanted` pieces of these rows, of at most `slots`; new rows follow."""
        keys, size = memory.keys, self._size
        self._known += [0] * (rows.stop - len(self._known))
        begin, end = min(self._known[row] for row in rows), max(wanted)
        if self._chunk_keys is None:
            room = keys.shape[3] // size
            self._chunk_keys = ChunkKeys((keys.shape[0], slots, keys.shape[2], max(room, 1), keys.shape[4]))
        if self._chunk_keys.chunks < end:
            self._chunk_keys.grow(keys.shape[3] // size)
        if end > begin:
            which = slice(rows.start, rows.stop)
            fresh = keys[:, which, :, begin * size : end * size].unflatten(3, (end - begin, size))
            self._chunk_keys.put(which, begin, fresh.mean(4, dtype=torch.float32))
        self._known[rows.start : rows.stop] = wanted
        return self._chunk_keys


def _few(rows: Sequence[int]) -> slice | list[int]:
    """Returns an index for the rows that avoids a copy if they are consecutive."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else list(rows)
