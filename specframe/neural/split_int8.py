"""A key/value cache in split int8: upper and lower halves of 8-bit codes, and the newest tokens in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError, InputError
from specframe.neural.cache import SlotCache

SPAN = 64
"""Number of tokens rounded together; in keys, a channel's 64 values share a step and a minimum."""
RECENT = 2 * SPAN
"""Room for the newest tokens, 64 to 127 of which stay in float32."""
STEPS = 255
GROUP = 32
"""Number of values whose halves fill 16 bytes: the lower 4 bits of the bytes are those of the first 16 values."""


@dataclass
class SplitInt8Storage:
    """The storage, initially zero; a row's token t is at index t % RECENT of `recent` until it is rounded."""

    codes: Tensor  # [2, 2 * layers, B, H, S, D / 2] uint8: the upper halves, and the lower ones
    key_scales: Tensor  # [layers, B, H, S / SPAN, 2, D] float32: step and minimum
    value_scales: Tensor  # [layers, B, H, S, 2] float32
    recent: Tensor  # [2 * layers, B, H, RECENT + N, D] float32: the newest tokens, and the nodes of a tree

    @classmethod
    def empty(cls, blocks: int, rows: int, sample: Tensor, slots: int, nodes: int) -> SplitInt8Storage:
        """Storage for keys and values like a sample [B, H, 1, D]."""
        _, heads, _, size = sample.shape
        return cls(
            torch.zeros(2, blocks, rows, heads, slots, size // 2, dtype=torch.uint8),
            torch.zeros(blocks // 2, rows, heads, slots // SPAN, 2, size),
            torch.zeros(blocks // 2, rows, heads, slots, 2),
            torch.zeros(blocks, rows, heads, RECENT + nodes, size),
        )

    def tensors(self) -> list[tuple[Tensor, int]]:
        """Each tensor with the index of its row dimension."""
        return [(getattr(self, field.name), 2 if field.name == "codes" else 1) for field in fields(self)]


class SplitInt8Cache(SlotCache):
    """Keys and values of native passes in split int8: see `SplitInt8Storage`. Only the newest tokens are not rounded.

    Which later tokens see the rounded entries of a token depends on their positions alone (`whole_from`), not on
    whether a text is read token by token, in pieces or as a tree.
    """

    def __init__(self, layers: int, capacity: int, rows: int | None = None, widths: object = None) -> None:
        super().__init__(layers, _spans(capacity), rows)
        self.stored: SplitInt8Storage | None = None
        self.counts: list[int] = [0] * (rows or 1)

    def open(self, sample: Tensor, nodes: int) -> SplitInt8Storage:
        """The storage, with room for `nodes` nodes."""
        rows = self.rows or 1
        with torch.inference_mode(False):  # sessions of either mode may follow
            if self.stored is None:
                self.stored = SplitInt8Storage.empty(2 * len(self.layers), rows, sample, self.capacity, nodes)
            elif (more := RECENT + nodes - self.stored.recent.shape[3]) > 0:
                self.stored.recent = torch.nn.functional.pad(self.stored.recent, (0, 0, 0, more))
        return self.stored

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the entries of each row's accepted path, the root first, as the newest tokens."""
        for row, path in enumerate(paths):
            self._append(row, path)

    def append(self, row: int, counts: Sequence[int]) -> None:
        """Keeps each row's first `counts` nodes, for the rows from `row` on, as the newest tokens."""
        for place, count in enumerate(counts, row):
            self._append(place, range(count))

    def begin(self, row: int, rows: int, start: int) -> None:
        """Records that the rows from `row` on hold `start` tokens."""
        self.counts[row : row + rows] = [start] * rows

    def _append(self, row: int, nodes: Sequence[int]) -> None:
        assert self.stored is not None
        before, after = self.counts[row], self.counts[row] + len(nodes)
        whole = self.stored.recent[:, row]
        places = torch.arange(before, after) % RECENT
        whole[:, :, places] = whole[:, :, RECENT + torch.tensor(nodes, dtype=torch.int64)]
        self.counts[row] = after
        for span in range(before // SPAN, after // SPAN):
            self._round(row, span)

    def _round(self, row: int, span: int) -> None:
        """Rounds a span of tokens to split int8, with scales per channel for keys and per token for values."""
        stored = self.stored
        assert stored is not None
        begin = span * SPAN % RECENT
        whole = stored.recent[:, row, :, begin : begin + SPAN]  # [2 * layers, H, SPAN, D]
        keys, values = whole[0::2], whole[1::2]
        key_codes, stored.key_scales[:, row, :, span] = _codes(keys, 2)
        slots = slice(span * SPAN, (span + 1) * SPAN)
        value_codes, stored.value_scales[:, row, :, slots] = _codes(values, 3)
        codes = torch.stack([key_codes, value_codes], 1).flatten(0, 1)  # [2 * layers, H, SPAN, D]
        upper, lower = codes >> 4, codes & 15
        for half, bits in enumerate((upper, lower)):
            first, second = bits.unflatten(-1, (-1, 2, GROUP // 2)).unbind(-2)
            stored.codes[half, :, row, :, slots] = (first | second << 4).flatten(-2)

    def keep(self, rows: Tensor, width: int | None = None) -> None:
        """Moves these rows, int64 [R], with all their slots, to the rows 0 .. R - 1."""
        order = rows.tolist()
        if self.stored is not None and order != list(range(len(order))):
            for tensor, dim in self.stored.tensors():
                tensor.narrow(dim, 0, len(order)).copy_(tensor.index_select(dim, rows))
        self.counts[: len(order)] = [self.counts[row] for row in order]

    def copy_row(self, source: int, destination: int, width: int) -> None:
        """Copies a row, of `width` tokens, to another."""
        assert self.stored is not None
        for tensor, dim in self.stored.tensors():
            tensor.select(dim, destination).copy_(tensor.select(dim, source))
        self.counts[destination] = self.counts[source]

    def clear(self) -> None:
        """Forgets all rows; slots beyond a row's count are never seen."""
        self.counts = [0] * len(self.counts)

    def grow(self, capacity: int) -> None:
        """Makes room for at least `capacity` slots and keeps the written ones."""
        more = _spans(capacity) - self.capacity
        if more <= 0:
            return
        self.capacity += more
        if self.stored is not None:
            with torch.inference_mode(False):
                pad = torch.nn.functional.pad
                self.stored.codes = pad(self.stored.codes, (0, 0, 0, more))
                self.stored.key_scales = pad(self.stored.key_scales, (0, 0, 0, 0, 0, more // SPAN))
                self.stored.value_scales = pad(self.stored.value_scales, (0, 0, 0, more))

    def compact(self, source: Tensor, destination: int | Tensor) -> None:
        """Does nothing, since `commit` has moved the entries."""

    def move(self, sources: Sequence[Sequence[int]], destinations: Sequence[Sequence[int]]) -> None:
        """Does nothing, since `commit` has moved the entries."""

    def put_row(self, memory: Tensor, row: int) -> None:
        """Raises InputError: a row cannot begin with a prefix."""
        raise InputError("keys and values in int8 are kept for whole rows: a row begins with no prefix")

    @property
    def every(self) -> Tensor:
        """Raises CompositionError: there are no keys and values to read."""
        raise CompositionError(
            "keys and values in int8 are not shown: take a KV selection that reads none, as `window` does"
        )


def _spans(capacity: int) -> int:
    """The capacity rounded up to a multiple of `SPAN`."""
    return -(-capacity // SPAN) * SPAN


def _codes(numbers: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Codes [P, H, SPAN, D] uint8, and the steps and minima of the numbers along `dim`, concatenated there."""
    lowest, highest = numbers.aminmax(dim=dim, keepdim=True)
    step = (highest - lowest) / STEPS
    codes = ((numbers - lowest) / step.where(step > 0, 1.0)).round().clamp(0, STEPS)
    return codes.to(torch.uint8), torch.cat([step, lowest], dim)
