"""Prefix cache: texts that were read, so that a prompt that begins as one of them is read from where they part."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from specframe import CompositionError, Entry, Session
from specframe.plugin import (
    CommittedMemory,
    Cycle,
    KnownPrefix,
    LayeredTarget,
    Target,
    is_approximate,
    text_of,
)

log = logging.getLogger("specframe.serve")

LEAST = 16
"""Smallest number of tokens that are worth the copy."""


class Prefixes:
    """Keys, values and features of the texts of rows: of those that run, and copies of those that ended.

    Copies take at most `size` bytes; the one that was used least recently is dropped first.
    """

    def __init__(self, size: int, target: Target) -> None:
        """An empty cache. It stays empty for a target whose rows cannot begin with a copy, or that reads parts."""
        self._target = target
        pieces = text_of(target).read_ahead is not None
        fits = pieces and isinstance(target, LayeredTarget) and not is_approximate(target)
        self._size = size if fits else 0
        self._kept: dict[tuple[str, tuple[int, ...]], KnownPrefix] = {}  # by salt and text; the last one was used last
        self._features: dict[int, list[dict[str, Tensor]]] = {}  # of running rows, by their requests' numbers
        self._salts: dict[int, str] = {}  # of running rows, where they have one
        self._stale: set[int] = set()  # rows with features that are not those of further rows

    def begin(self, number: int, salt: str) -> None:
        """Notes the salt of a row to come: its text is found by prompts with the same salt alone."""
        if salt:
            self._salts[number] = salt

    def restart(self) -> None:
        """Forgets all texts, and those of running rows once they end: the target gives further features from now on."""
        self._kept.clear()
        self._stale = set(self._features)

    @property
    def bytes(self) -> int:
        """Size of the copies."""
        return sum(map(_bytes, list(self._kept.values())))

    def count(self, tokens: Sequence[int], salt: str = "") -> int:
        """Returns how many tokens of a prompt are in copies; for any thread."""
        return max((_common(tokens, text) for own, text in list(self._kept) if own == salt), default=0)

    def find(self, tokens: Sequence[int], session: Session, salt: str = "") -> KnownPrefix | None:
        """Returns the longest beginning of a prompt that is known, its last token excepted; None: there is none.

        Texts of another salt are not looked at.
        """
        own = [text for text in self._kept if text[0] == salt]
        kept = max(own, key=lambda text: _common(tokens, text[1]), default=(salt, ()))
        running = max(self._running(session, salt), key=lambda row: _common(tokens, row[1]), default=(0, ()))
        count, there = _common(tokens, kept[1]), _common(tokens, running[1])
        if max(count, there) < LEAST:
            return None
        if there > count:
            return self._copy(running[0], session.live[running[0]], there)
        self._kept[kept] = self._kept.pop(kept)
        return self._kept[kept].head(count)

    def sharing(self, tokens: Sequence[int], others: Sequence[Sequence[int]], session: Session, salt: str = "") -> bool:
        """Returns whether a prompt begins as one of the others do, beyond what is known, so that it had better wait."""
        if not self._size or not others:
            return False
        shared = max(_common(tokens, other) for other in others)
        if shared < LEAST:
            return False
        there = max((_common(tokens, text) for _, text in self._running(session, salt)), default=0)
        known = max(self.count(tokens, salt), there)
        return shared >= (known if known >= LEAST else 0) + LEAST

    def follow(self, cycle: Cycle, session: Session) -> None:
        """Notes the features that a cycle committed, and copies the rows that it ended."""
        if not self._size:
            return
        fresh = cycle.committed.prompt is not None
        first = len(session.live) if fresh else 0
        counts = cycle.committed.counts
        for row, entry in enumerate(session.cycle_rows):
            if entry.request.inputs:
                continue
            taps = cycle.committed.features.items()
            features = {tap: values[row : row + 1, : counts[row]].clone() for tap, values in taps}
            self._features.setdefault(entry.request.number, []).append(features)
            if entry.ended is not None and entry.request.number not in self._stale:
                self._keep(first + row, entry)

    def forget(self, number: int) -> None:
        """Forgets the features of a row that has left."""
        self._features.pop(number, None)
        self._stale.discard(number)
        self._salts.pop(number, None)

    def _running(self, session: Session, salt: str) -> list[tuple[int, Sequence[int]]]:
        """The rows of that salt, each with those of its tokens that the target has processed."""
        if not self._size:
            return []
        return [
            (row, entry.text[:-1])
            for row, entry in enumerate(session.live)
            if entry.request.number not in self._stale
            and not entry.request.inputs
            and self._salts.get(entry.request.number, "") == salt
        ]

    def _keep(self, row: int, entry: Entry) -> None:
        memory = self._memory()
        count = min(memory.counts[row], len(entry.text))
        text, salt = tuple(entry.text[:count]), self._salts.get(entry.request.number, "")
        if count < LEAST or any(own == salt and text == kept[:count] for own, kept in self._kept):
            return
        prefix = self._copy(row, entry, count)
        if prefix is None:
            return
        fitting = count * self._size // max(_bytes(prefix), 1)
        if fitting < count:
            prefix, text = _owned(prefix.head(fitting)), text[:fitting]
        for own, kept in [*self._kept]:
            if own == salt and kept == text[: len(kept)]:
                del self._kept[own, kept]
        while self._kept and self.bytes + _bytes(prefix) > self._size:
            del self._kept[next(iter(self._kept))]
        self._kept[salt, text] = prefix

    def _copy(self, row: int, entry: Entry, count: int) -> KnownPrefix | None:
        """A copy of the first `count` entries of a row; None, and no further ones, where the target has none."""
        try:
            memory = self._memory().copy(row, count)
        except CompositionError as error:
            log.warning("no prefix cache for this target: %s", error)
            self._size = 0
            return None
        parts = self._features[entry.request.number]
        features = {tap: torch.cat([part[tap] for part in parts], 1)[:, :count] for tap in parts[0]}
        return KnownPrefix(tuple(entry.text[:count]), memory, features)

    def _memory(self) -> CommittedMemory:
        assert isinstance(self._target, LayeredTarget), "there is no cache for other targets"
        return self._target.memory()


def aligned(prefixes: Sequence[KnownPrefix | None]) -> list[KnownPrefix | None]:
    """The prefixes, cut to one length where that takes few tokens: prompts after such are read together."""
    cut: dict[int, int] = {}
    shortest = 0
    for count in sorted({len(prefix.tokens) for prefix in prefixes if prefix is not None}):
        shortest = shortest if shortest and count <= shortest + LEAST else count
        cut[count] = shortest
    return [None if prefix is None else prefix.head(cut[len(prefix.tokens)]) for prefix in prefixes]


def _common(tokens: Sequence[int], text: Sequence[int]) -> int:
    """Returns how many first tokens of a prompt, its last excepted, are those of a text; 0 for too few."""
    most = min(len(tokens) - 1, len(text))
    if most < LEAST or tuple(tokens[:LEAST]) != tuple(text[:LEAST]):
        return 0  # as most texts do: no copy is made of them
    if tuple(tokens[:most]) == tuple(text[:most]):
        return most
    return next(place for place in range(most) if tokens[place] != text[place])


def _bytes(prefix: KnownPrefix) -> int:
    return sum(values.nbytes for values in (prefix.memory, *prefix.features.values()))


def _owned(prefix: KnownPrefix) -> KnownPrefix:
    """A copy of the prefix in storage of exactly its size."""
    return KnownPrefix(
        prefix.tokens, prefix.memory.clone(), {tap: part.clone() for tap, part in prefix.features.items()}
    )
