"""An index of texts by what stands before each place: where the longest ending of another text occurs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEPARATOR = 0xFFFFFFFF
"""Stands behind every text; no token has this id."""
REACH = 16
"""The most tokens of a match: the order of two places is decided by this many tokens."""


@dataclass(frozen=True)
class Match:
    """Where the longest ending of a text occurs: a part of the order."""

    length: int
    """Tokens of the ending; 0 if none occurs."""
    begin: int
    end: int

    def __len__(self) -> int:
        """How often it occurs."""
        return self.end - self.begin


class ContextArray:
    """Texts and the order of their places by the tokens up to there, read backwards: a suffix array of reversed texts.

    All occurrences of an ending stand side by side in that order, and those of the longest around the place where the
    ending itself would stand: one search finds them, whatever their length. The arrays may be memory-mapped.
    """

    def __init__(self, tokens: NDArray[np.uint32], order: NDArray[np.uint32]) -> None:
        self.tokens = tokens  # [n], a SEPARATOR behind every text
        self.order = order  # [n], the places of `tokens` sorted by the REACH tokens up to there, the last one first

    def __len__(self) -> int:
        """The number of tokens, separators included."""
        return len(self.tokens)

    @classmethod
    def build(cls, texts: Sequence[Sequence[int]]) -> ContextArray:
        """The array of some texts."""
        parts = [np.append(np.asarray(text, dtype=np.uint32), np.uint32(SEPARATOR)) for text in texts if len(text)]
        return cls._of(np.concatenate(parts) if parts else np.empty(0, np.uint32))

    def joined(self, other: ContextArray) -> ContextArray:
        """The array of the texts of both."""
        return ContextArray._of(np.concatenate([self.tokens, other.tokens]))

    def find(self, tail: Sequence[int]) -> Match:
        """Where the longest suffix of `tail` that occurs does, of at most REACH tokens."""
        wanted = list(tail[-REACH:])[::-1]
        place = bisect_left(self.order, wanted, key=self._reader(len(wanted)))
        around = range(max(place - 1, 0), min(place + 1, len(self.order)))
        length = max((self._common(at, wanted) for at in around), default=0)
        if length == 0:
            return Match(0, 0, 0)
        part, read = wanted[:length], self._reader(length)
        begin = bisect_left(self.order, part, hi=place, key=read)
        return Match(length, begin, bisect_right(self.order, part, lo=place, key=read))

    def behind(self, match: Match, *, length: int, limit: int) -> list[list[int]]:
        """The `length` tokens behind the occurrences of a match, of at most `limit` of them.

        Of more occurrences those at even distances in the order are taken, whatever stands before them.
        """
        chosen = np.linspace(match.begin, match.end - 1, min(limit, len(match))).astype(np.int64)
        starts = self.order[chosen].astype(np.int64) + 1
        places = np.minimum(starts[:, None] + np.arange(length), len(self.tokens) - 1)
        rows: list[list[int]] = self.tokens[places].tolist()
        return rows

    @classmethod
    def _of(cls, tokens: NDArray[np.uint32]) -> ContextArray:
        last = np.uint32(max(len(tokens) - 1, 0))
        return cls(tokens, last - suffix_order(tokens[::-1]))

    def _common(self, at: int, wanted: list[int]) -> int:
        """How many tokens of a reversed ending stand before a place of the order."""
        found = self._reader(len(wanted))(self.order[at])
        return next((i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(found))

    def _reader(self, width: int) -> Callable[[int], list[int]]:
        """Gives the `width` tokens up to a place, the last one first."""
        tokens = self.tokens

        def read(place: int) -> list[int]:
            end = int(place) + 1
            found: list[int] = tokens[max(end - width, 0) : end].tolist()
            found.reverse()
            return found

        return read


def suffix_order(tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The places of tokens [n] in the order of the REACH tokens from there on; of equal ones the first place first.

    Prefix doubling (Manber and Myers 1993), stopped at REACH: sorted by 2k tokens from the ranks by k tokens.
    """
    size = len(tokens)
    if size == 0:
        return np.empty(0, np.uint32)
    order = np.argsort(tokens, kind="stable")
    rank = _ranks(tokens[order], order)
    known = 1
    while known < REACH and rank[order[-1]] + 1 < size:
        behind = np.zeros(size, np.int64)
        behind[: size - known] = rank[known:] + 1  # 0: nothing is left of the array
        key = rank * (size + 1) + behind
        order = np.argsort(key, kind="stable")
        rank = _ranks(key[order], order)
        known *= 2
    return order.astype(np.uint32)


def _ranks(ordered: NDArray[np.int64] | NDArray[np.uint32], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of each place [n], equal where the ordered keys are equal."""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
    return rank
