"""Prefix cache: texts that were read, so that a prompt that begins as one of them is read from where they part."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from specframe import CompositionError, Entry, Session
from specframe.plugin import CommittedMemory, Cycle, KnownPrefix, LayeredTarget, Target, is_approximate, text_of
from specframe_serve.jobs import Job

log = logging.getLogger("specframe.serve")

LEAST = 16
"""Smallest number of tokens that are worth the copy."""


class Prefixes:
    """Keys, values and features of the texts of rows: of those that run, and copies of those that ended.

    Copies take at most `size` bytes; the one that was used least recently is dropped first.
    """

    def __init__(self, size: int, target: Target, running: Mapping[int, Job]) -> None:
        """An empty cache for running jobs by their numbers.

        It stays empty for a target whose rows cannot begin with a copy, or that reads parts.
        """
        self._target, self._running = target, running
        pieces = text_of(target).read_ahead is not None
        fits = pieces and isinstance(target, LayeredTarget) and not is_approximate(target)
        self._size = size if fits else 0
        self._stored: dict[tuple[str, tuple[int, ...]], KnownPrefix] = {}  # by salt and text; the last was used last

    def restart(self) -> None:
        """Forgets all texts, and those of running rows once they end: the target gives further features from now on."""
        self._stored.clear()
        for job in self._running.values():
            job.stale = True

    @property
    def bytes(self) -> int:
        """Size of the copies."""
        return sum(map(_bytes, list(self._stored.values())))

    def count(self, job: Job) -> int:
        """Returns how many tokens of a job's prompt are in copies; for any thread."""
        if job.request.inputs:
            return 0
        return max((_common(job.request.tokens, text) for own, text in [*self._stored] if own == job.salt), default=0)

    def find(self, job: Job, session: Session) -> KnownPrefix | None:
        """Returns the longest beginning of a job's prompt that is known, its last token excepted; None: there is none.

        Texts of another salt are not looked at.
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
        """Returns whether a prompt begins as one of the others do, beyond what is known, so that it had better wait."""
        tokens = job.request.tokens
        own = (other.request.tokens for other in others if other.salt == job.salt)
        shared = max((_common(tokens, other) for other in own), default=0)
        if not self._size or shared < LEAST:
            return False
        live_count = max((_common(tokens, text) for _, text in self._live(session, job.salt)), default=0)
        known = max(self.count(job), live_count)
        return shared >= (known if known >= LEAST else 0) + LEAST

    def follow(self, cycle: Cycle, session: Session) -> None:
        """Notes the features that a cycle committed, and copies the rows that it ended."""
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
        """The rows of that salt, each with those of its tokens that the target has processed."""
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
        """A copy of the first `count` entries of a row; None, and no further ones, where the target has none."""
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
    features = {tap: part.clone() for tap, part in prefix.features.items()}
    return KnownPrefix(prefix.tokens, prefix.memory.clone(), features)
