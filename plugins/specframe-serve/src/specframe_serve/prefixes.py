"""Prefix cache: a prompt that shares its beginning with an earlier text is read only from there on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from specframe import CompositionError, Entry, Session
from specframe.plugin import CommittedMemory, Cycle, KnownPrefix, LayeredTarget, Target, is_approximate, text_of
from specframe_serve.jobs import Job

log = logging.getLogger("specframe.serve")

LEAST = 16
"""Minimum number of tokens that justify a copy."""


class Prefixes:
    """Keys, values and features of the texts of rows: of running rows, and copies from ended rows.

    Copies take at most `size` bytes; the least recently used one is dropped first.
    """

    def __init__(self, size: int, target: Target, running: Mapping[int, Job]) -> None:
        """Creates an empty cache for the running jobs by their row numbers.

        It stays empty for a target whose rows cannot begin with a copy, or that reads only a part of prompts.
        """
        self._target, self._running = target, running
        pieces = text_of(target).read_ahead is not None
        fits = pieces and isinstance(target, LayeredTarget) and not is_approximate(target)
        self._size = size if fits else 0
        self._stored: dict[tuple[str, tuple[int, ...]], KnownPrefix] = {}  # by salt and text; the latest use is last

    def restart(self) -> None:
        """Drops all texts, those of running rows at their end: from now on the target returns more features."""
        self._stored.clear()
        for job in self._running.values():
            job.stale = True

    @property
    def bytes(self) -> int:
        """Size of the copies in bytes."""
        return sum(map(_bytes, list(self._stored.values())))

    def count(self, job: Job) -> int:
        """Returns the number of tokens of a job's prompt that are in copies; may be called from any thread."""
        if job.request.inputs:
            return 0
        return max((_common(job.request.tokens, text) for own, text in [*self._stored] if own == job.salt), default=0)

    def find(self, job: Job, session: Session) -> KnownPrefix | None:
        """Returns the longest cached beginning of a job's prompt without its last token; None if there is none.

        Texts with another salt are ignored.
        """
        tokens, salt = job.request.tokens, job.salt
        if job.request.inputs:
            return None
        own = [text for text in self._stored if text[0] == salt]
        stored = max(own, key=lambda text: _common(tokens, text[1]), default=(salt, ()))
        running = max(self._live(session, salt), key=lambda row: _common(tokens, row[1]), default=(0, ()))
        count, live_count = _common(tokens, stored[1]), _common(tokens, running[1])
        if max(count, live_count) < LEAST:
            return None
        if live_count > count:
            return self._copy(running[0], session.live[running[0]], live_count)
        self._stored[stored] = self._stored.pop(stored)
        return self._stored[stored].head(count)

    def sharing(self, job: Job, others: Sequence[Job], session: Session) -> bool:
        """Returns whether a prompt shares an uncached beginning with one of the others, so that waiting for it pays."""
        tokens = job.request.tokens
        own = (other.request.tokens for other in others if other.salt == job.salt)
        shared = max((_common(tokens, other) for other in own), default=0)
        if not self._size or shared < LEAST:
            return False
        live_count = max((_common(tokens, text) for _, text in self._live(session, job.salt)), default=0)
        known = max(self.count(job), live_count)
        return shared >= (known if known >= LEAST else 0) + LEAST

    def follow(self, cycle: Cycle, session: Session) -> None:
        """Stores the features committed by a cycle, and copies the rows that it ended."""
        if not self._size:
            return
        first = len(session.live) if cycle.committed.prompt is not None else 0
        counts = cycle.committed.counts
        for row, entry in enumerate(session.cycle_rows):
            if entry.request.inputs:
                continue
            job, taps = self._running[entry.request.number], cycle.committed.features.items()
            job.features.append({tap: values[row : row + 1, : counts[row]].clone() for tap, values in taps})
            if entry.ended is not None and not job.stale:
                self._keep(first + row, entry, job.salt)

    def _live(self, session: Session, salt: str) -> list[tuple[int, Sequence[int]]]:
        """Returns the running rows of that salt, each with the tokens that the target has processed."""
        if not self._size:
            return []
        rows = [(row, entry, self._running[entry.request.number]) for row, entry in enumerate(session.live)]
        return [
            (row, entry.text[:-1])
            for row, entry, job in rows
            if job.salt == salt and not job.stale and not entry.request.inputs
        ]

    def _keep(self, row: int, entry: Entry, salt: str) -> None:
        memory = self._memory()
        count = min(memory.counts[row], len(entry.text))
        text = tuple(entry.text[:count])
        if count < LEAST or any(own == salt and text == stored[:count] for own, stored in self._stored):
            return
        prefix = self._copy(row, entry, count)
        if prefix is None:
            return
        fitting = count * self._size // max(_bytes(prefix), 1)
        if fitting < count:
            prefix, text = _owned(prefix.head(fitting)), text[:fitting]
        for own, stored in [*self._stored]:
            if own == salt and stored == text[: len(stored)]:
                del self._stored[own, stored]
        while self._stored and self.bytes + _bytes(prefix) > self._size:
            del self._stored[next(iter(self._stored))]
        self._stored[salt, text] = prefix

    def _copy(self, row: int, entry: Entry, count: int) -> KnownPrefix | None:
        """Returns a copy of a row's first `count` entries; None, and no further ones, if the target cannot copy."""
        try:
            memory = self._memory().copy(row, count)
        except CompositionError as error:
            log.warning("no prefix cache for this target: %s", error)
            self._size = 0
            return None
        parts = self._running[entry.request.number].features
        features = {tap: torch.cat([part[tap] for part in parts], 1)[:, :count] for tap in parts[0]}
        return KnownPrefix(tuple(entry.text[:count]), memory, features)

    def _memory(self) -> CommittedMemory:
        assert isinstance(self._target, LayeredTarget), "there is no cache for other targets"
        return self._target.memory()


def aligned(prefixes: Sequence[KnownPrefix | None]) -> list[KnownPrefix | None]:
    """Cuts the prefixes to a common length if that loses few tokens, because such prompts can be read together."""
    cut: dict[int, int] = {}
    shortest = 0
    for count in sorted({len(prefix.tokens) for prefix in prefixes if prefix is not None}):
        shortest = shortest if shortest and count <= shortest + LEAST else count
        cut[count] = shortest
    return [None if prefix is None else prefix.head(cut[len(prefix.tokens)]) for prefix in prefixes]


def _common(tokens: Sequence[int], text: Sequence[int]) -> int:
    """Returns the length of the beginning that a text and a prompt without its last token share; 0 if too short."""
    most = min(len(tokens) - 1, len(text))
    if most < LEAST or tuple(tokens[:LEAST]) != tuple(text[:LEAST]):
        return 0  # the usual case: nothing is copied
    if tuple(tokens[:most]) == tuple(text[:most]):
        return most
    return next(place for place in range(most) if tokens[place] != text[place])


def _bytes(prefix: KnownPrefix) -> int:
    return sum(values.nbytes for values in (prefix.memory, *prefix.features.values()))


def _owned(prefix: KnownPrefix) -> KnownPrefix:
    """Returns a copy of the prefix in storage of exactly its size."""
    features = {tap: part.clone() for tap, part in prefix.features.items()}
    return KnownPrefix(prefix.tokens, prefix.memory.clone(), features)
