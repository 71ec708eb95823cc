"""An index of texts by the context before each position: finds the longest suffix of another text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEPARATOR = 0xFFFFFFFF
"""Separator after every text; no token has this id."""
LITTLE, WIDTH = "<u4", 4
"""A token's bytes, least significant first; read backwards, the bytes of numbers sort by value."""
REACH = 16
"""Maximum number of tokens of a match: positions are sorted by this many tokens."""
AFTER = b"\xff" * WIDTH * REACH
"""A suffix that sorts after everything that begins with the same bytes."""
STEP = 256
"""Distance of the positions whose readings are stored, so that a search starts without Python comparisons."""


@dataclass(frozen=True)
class SuffixMatch:
    """Occurrences of the longest matching suffix of a text: a range of the order."""

    length: int
    """Number of tokens of the suffix; 0 if none occurs."""
    begin: int
    end: int

    def __len__(self) -> int:
        """Returns the number of occurrences."""
        return self.end - self.begin


class ContextArray:
    """Texts, and their positions sorted by the preceding tokens read backwards: a suffix array of reversed texts.

    All occurrences of a suffix are adjacent in that order, and those of the longest one surround the place where the
    searched text itself would be inserted. One search therefore finds them, for any length. Arrays may be
    memory-mapped.
    """

    def __init__(self, tokens: NDArray[np.uint32], order: NDArray[np.uint32]) -> None:
        self.tokens = tokens  # [n], a SEPARATOR after every text
        self.order = order  # [n], positions in `tokens` sorted by the REACH tokens up to them, last one first
        self._bytes = np.ascontiguousarray(tokens, dtype=LITTLE).view(np.uint8).data
        self._places = np.ascontiguousarray(order).data
        self._signs = list(map(self._read, self._places[::STEP].tolist()))  # readings at every STEP-th position

    def __len__(self) -> int:
        """Returns the number of tokens, separators included."""
        return len(self.tokens)

    @classmethod
    def build(cls, texts: Sequence[Sequence[int]]) -> ContextArray:
        """Builds the array of some texts."""
        parts = [np.append(np.asarray(text, dtype=np.uint32), np.uint32(SEPARATOR)) for text in texts if len(text)]
        return cls._of(np.concatenate(parts) if parts else np.empty(0, np.uint32))

    @classmethod
    def join(cls, arrays: Sequence[ContextArray]) -> ContextArray:
        """Merges several arrays, which takes a fraction of the time of building one, because they are sorted."""
        offsets = np.cumsum([0, *map(len, arrays)])
        orders = [array.order + np.uint32(offset) for array, offset in zip(arrays, offsets, strict=False)]
        return cls._of(np.concatenate([array.tokens for array in arrays]), np.concatenate(orders))

    def without(self, tokens: int) -> ContextArray:
        """Returns the array without its first texts, of at least the given number of tokens including separators.

        The separator of the last dropped text is kept, because the positions after it are sorted by it.
        """
        ends = np.flatnonzero(self.tokens[tokens - 1 :] == SEPARATOR)
        cut = tokens - 1 + int(ends[0]) if len(ends) else len(self)
        if cut >= len(self) - 1:
            return ContextArray.build([])
        return ContextArray(self.tokens[cut:], self.order[self.order >= cut] - np.uint32(cut))

    def find(self, tail: Sequence[int], least: int = 1) -> SuffixMatch:
        """Finds the longest suffix of `tail` that occurs, of at most REACH and at least `least` tokens."""
        wanted = np.asarray(tail[-REACH:], dtype=LITTLE).tobytes()[::-1]
        place = self._place(wanted)
        around = self._places[max(place - 1, 0) : place + 1].tolist()
        length = max((_common(self._read(start), wanted) for start in around), default=0)
        if length < max(least, 1):
            return SuffixMatch(0, 0, 0)
        part = wanted[: WIDTH * length]
        return SuffixMatch(length, self._place(part), self._place(part + AFTER))

    def after(self, match: SuffixMatch, *, length: int, limit: int) -> list[list[int]]:
        """Returns the `length` tokens after occurrences of a match, for at most `limit` of them.

        Of more occurrences, evenly spaced ones in the order are taken, independently of the preceding text.
        """
        most = min(limit, len(match))
        chosen = match.begin + np.arange(most) * (len(match) - 1) // max(most - 1, 1)
        starts = self.order[chosen].astype(np.int64) + 1
        places = np.minimum(starts[:, None] + np.arange(length), len(self.tokens) - 1)
        rows: list[list[int]] = self.tokens[places].tolist()
        return rows

    @classmethod
    def _of(cls, tokens: NDArray[np.uint32], near: NDArray[np.uint32] | None = None) -> ContextArray:
        """Builds the array of tokens; the closer the order `near` is to the result, the faster."""
        last = np.uint32(max(len(tokens) - 1, 0))
        return cls(tokens, last - suffix_order(tokens[::-1], None if near is None else last - near))

    def _place(self, wanted: bytes) -> int:
        """Returns the first place of the order with a reading that is not smaller."""
        sign = bisect_left(self._signs, wanted)
        low, high = STEP * max(sign - 1, 0), min(STEP * sign, len(self))
        return bisect_left(self._places, wanted, low, high, key=self._read)

    def _read(self, place: int) -> bytes:
        """Returns the REACH tokens up to a position, last one first, as bytes that sort like the tokens."""
        begin, end = WIDTH * (place + 1 - REACH), WIDTH * (place + 1)
        return self._bytes[begin if begin > 0 else 0 : end].tobytes()[::-1]


def _common(found: bytes, wanted: bytes) -> int:
    """Returns the number of tokens that two readings share from the beginning."""
    size = min(len(found), len(wanted))
    differing = int.from_bytes(found[:size], "big") ^ int.from_bytes(wanted[:size], "big")
    return (size - (differing.bit_length() + 7) // 8) // WIDTH


def suffix_order(tokens: NDArray[np.uint32], near: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
    """Sorts the positions of tokens [n] by the REACH tokens from there on; ties in order of position.

    With an order `near` of all positions, ties are left as they are in it. Sorting is faster the longer its sorted runs
    are, because numpy's stable sort merges runs.

    Prefix doubling (Manber and Myers 1993), stopped at REACH: sorted by 2k tokens from the ranks by k tokens.
    """
    size = len(tokens)
    if size == 0:
        return np.empty(0, np.uint32)
    order, rank = _sorted(tokens.astype(np.int64), np.arange(size) if near is None else near)
    known = 1
    while known < REACH and rank[order[-1]] + 1 < size:
        after = np.zeros(size, np.int64)
        after[: size - known] = rank[known:] + 1  # 0: beyond the array's end
        order, rank = _sorted(rank * (size + 1) + after, order)
        known *= 2
    return order.astype(np.uint32)


def _sorted(key: NDArray[np.int64], order: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns an order of positions [n] sorted by their keys, and each position's rank [n], equal for equal keys."""
    found = key[order]
    sorting = np.argsort(found, kind="stable")
    order, found = order[sorting], found[sorting]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.concatenate([[0], np.cumsum(found[1:] != found[:-1])])
    return order, rank
