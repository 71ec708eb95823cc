"""A suffix array over token ids: where in many texts a sequence of tokens occurs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

SEPARATOR = 0xFFFFFFFF
"""Stands behind every text; no token has this id."""
REACH = 16
"""The most tokens of a match: the order of two suffixes is decided by this many tokens."""


class SuffixArray:
    """Texts and the order of their suffixes, as arrays that may be memory-mapped."""

    def __init__(self, tokens: NDArray[np.uint32], order: NDArray[np.uint32]) -> None:
        self.tokens = tokens  # [n], a SEPARATOR behind every text
        self.order = order  # [n], the places of `tokens` sorted by the REACH tokens from there on

    def __len__(self) -> int:
        """The number of tokens, separators included."""
        return len(self.tokens)

    @classmethod
    def build(cls, texts: Sequence[Sequence[int]]) -> SuffixArray:
        """The array of some texts."""
        parts = [np.append(np.asarray(text, dtype=np.uint32), np.uint32(SEPARATOR)) for text in texts if len(text)]
        tokens = np.concatenate(parts) if parts else np.empty(0, np.uint32)
        return cls(tokens, suffix_order(tokens))

    def joined(self, other: SuffixArray) -> SuffixArray:
        """The array of the texts of both."""
        tokens = np.concatenate([self.tokens, other.tokens])
        return SuffixArray(tokens, suffix_order(tokens))

    def longest(self, tail: Sequence[int]) -> int:
        """The length of the longest suffix of `tail` that occurs, at most REACH."""
        low, high = 0, min(len(tail), REACH)
        while low < high:  # every suffix of an occurring sequence occurs
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._occurs(list(tail[len(tail) - middle :])) else (low, middle - 1)
        return low

    def range(self, sequence: Sequence[int]) -> tuple[int, int]:
        """The part of `order` whose suffixes begin with a sequence of at most REACH tokens."""
        wanted = list(sequence)
        begin = bisect_left(self.order, wanted, key=self._reader(len(wanted)))
        return begin, bisect_right(self.order, wanted, lo=begin, key=self._reader(len(wanted)))

    def _occurs(self, sequence: list[int]) -> bool:
        read = self._reader(len(sequence))
        place = bisect_left(self.order, sequence, key=read)
        return place < len(self.order) and read(self.order[place]) == sequence

    def _reader(self, width: int) -> Callable[[int], list[int]]:
        """Gives the `width` tokens from a place on."""
        tokens = self.tokens
        return lambda place: tokens[place : place + width].tolist()

    def behind(self, sequence: Sequence[int], *, length: int, limit: int) -> list[list[int]]:
        """The `length` tokens behind the occurrences of a sequence of at most REACH tokens, of at most `limit` of them.

        Of more occurrences those at even distances in the order are taken, so that every continuation has its share.
        """
        begin, end = self.range(sequence)
        chosen = np.linspace(begin, end - 1, min(limit, end - begin)).astype(np.int64)
        starts = self.order[chosen].astype(np.int64) + len(sequence)
        places = np.minimum(starts[:, None] + np.arange(length), len(self.tokens) - 1)
        rows: list[list[int]] = self.tokens[places].tolist()
        return rows


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
