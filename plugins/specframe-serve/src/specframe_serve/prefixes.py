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
        self._kept: dict[tuple[int, ...], KnownPrefix] = {}  # the last one was used last
        self._features: dict[int, list[dict[str, Tensor]]] = {}  # of running rows, by their requests' numbers
        self._stale: set[int] = set()  # rows with features that are not those of further rows

    def restart(self) -> None:
        """Forgets all texts, and those of running rows once they end: the target gives further features from now on."""
        self._kept.clear()
        self._stale = set(self._features)

    @property
    def bytes(self) -> int:
        """Size of the copies."""
        return sum(map(_bytes, list(self._kept.values())))

    def count(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens of a prompt are in copies; for any thread."""
        return max((_common(tokens, text) for text in list(self._kept)), default=0)

    def find(self, tokens: Sequence[int], session: Session) -> KnownPrefix | None:
        """Returns the longest beginning of a prompt that is known, its last token excepted; None: there is none."""
        kept = max(self._kept, key=lambda text: _common(tokens, text), default=())
        running = max(self._running(session), key=lambda row: _common(tokens, row[1]), default=(0, ()))
        count, there = _common(tokens, kept), _common(tokens, running[1])
        if max(count, there) < LEAST:
            return None
        if there > count:
            return self._copy(running[0], session.live[running[0]], there)
        self._kept[kept] = self._kept.pop(kept)
        return self._kept[kept].head(count)

    def sharing(self, tokens: Sequence[int], others: Sequence[Sequence[int]], session: Session) -> bool:
        """Returns whether a prompt begins as one of the others do, beyond what is known, so that it had better wait."""
        if not self._size or not others:
            return False
        shared = max(_common(tokens, other) for other in others)
        if shared < LEAST:
            return False
        there = max((_common(tokens, text) for _, text in self._running(session)), default=0)
        known = max(self.count(tokens), there)
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

    def _running(self, session: Session) -> list[tuple[int, Sequence[int]]]:
        """The rows of the session, each with those of its tokens that the target has processed."""
        if not self._size:
            return []
        usable = [entry.request.number not in self._stale and not entry.request.inputs for entry in session.live]
        return [(row, entry.text[:-1]) for row, entry in enumerate(session.live) if usable[row]]

    def _keep(self, row: int, entry: Entry) -> None:
        memory = self._memory()
        count = min(memory.counts[row], len(entry.text))
        text = tuple(entry.text[:count])
        if count < LEAST or any(text == kept[:count] for kept in self._kept):
            return
        prefix = self._copy(row, entry, count)
        if prefix is None:
            return
        fitting = count * self._size // max(_bytes(prefix), 1)
        if fitting < count:
            prefix, text = _owned(prefix.head(fitting)), text[:fitting]
        for kept in [kept for kept in self._kept if kept == text[: len(kept)]]:
            del self._kept[kept]
        while self._kept and self.bytes + _bytes(prefix) > self._size:
            del self._kept[next(iter(self._kept))]
        self._kept[text] = prefix

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
    """Returns how many first tokens of a prompt, its last excepted, are those of a text."""
    most = min(len(tokens) - 1, len(text))
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
