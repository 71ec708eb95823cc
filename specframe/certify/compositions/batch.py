"""The distribution of one row's output among other rows: admitted before and after it, with prompts of their own.

A part that mixes rows up can be right for every row alone, and for rows that all decode the same text. So a row is also
enumerated among others: their random numbers are given, and whatever they are, this row must emit the target's
distribution. Its branches run side by side; where that changes a branch's draws they are run once more, each alone with
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto

import torch
from torch import Tensor

from specframe.certify.compositions.branches import Forks
from specframe.certify.compositions.emission import END, Emission
from specframe.decoding.requests import Request
from specframe.decoding.session import Session
from specframe.kernel.sampling import RandomSource
from specframe.sampling.random import SeededRandom

WATCHED = -1
"""The seed of the row that is enumerated; the others have seeds of their own."""
BATCHES = 4
"""Batches with several other rows; the next one has a single other row, and those after it have one size each."""
SIZES = range(3, 9)
"""Sizes of the batches in which a row is decoded alone with so many others; two is the single other row's."""


class Stay(Enum):
    """Time that a row stays; the moment is the watched row's first cycle."""

    TO_THE_END = auto()
    UNTIL_THEN = auto()
    LATE = auto()


@dataclass(frozen=True)
class Other:
    """A row next to the watched one."""

    shift: int
    """Added to every token of the prompt, so that it is another one."""
    prompt: int
    """Length of its prompt in tokens."""
    stay: Stay


STAYING = (Other(1, 3, Stay.TO_THE_END), Other(2, 5, Stay.TO_THE_END), Other(0, 4, Stay.LATE))
LEAVING = (Other(1, 3, Stay.UNTIL_THEN), Other(2, 5, Stay.TO_THE_END))
"""An earlier row leaves while the watched row is the last one, which takes its place."""
EQUAL = tuple(tuple(Other(place, 3 + place // 3, Stay.TO_THE_END) for place in range(1, size)) for size in SIZES)
"""Others that are admitted together, so that the batch has one size from the watched row's admission on."""
LINES = (STAYING, STAYING, LEAVING, LEAVING, (Other(1, 3, Stay.TO_THE_END),), *EQUAL)
LEAVES = LINES.index(LEAVING)
"""A batch whose first row leaves."""


@dataclass(frozen=True)
class Accompanied(Emission):
    """An emission whose row is decoded with others, who stay, leave before it, join later, or are one alone."""

    batch: int = 0
    """Chooses the others, and names their random numbers."""

    @classmethod
    def of(cls, emission: Emission, batch: int) -> Accompanied:
        """The emission in this batch."""
        return cls(**{each.name: getattr(emission, each.name) for each in fields(emission)}, batch=batch)

    @property
    def pair(self) -> bool:
        """True where there is one other row; with a single branch the batch then has exactly two."""
        return self.batch == BATCHES

    def program(self, random: Forks, rows: int) -> Tensor:
        """The real session on `rows` branches and other rows: [rows, length] int64, END after the last token."""
        parts = self.parts()
        longest = (self.length + 2) * parts.nodes
        watched = Request(
            tokens=self.prompt, sampling=self.sampling, seed=WATCHED, max_new_tokens=self.length, ends=self.ends
        )
        line = LINES[self.batch]
        requests = [self._request(other, longest, parts.target.vocab_size) for other in line]
        session = Session(
            parts, rows + len(line), len(self.prompt) + longest + parts.nodes, random=BatchStreams(random)
        )
        leaving = []
        if self.batch > BATCHES:
            session.admit(requests)
        for other, request in zip(line, requests, strict=True):
            if other.stay is not Stay.LATE and self.batch <= BATCHES:
                [entry] = session.admit([request])
                leaving += [entry] if other.stay is Stay.UNTIL_THEN else []
                session.step()
        entries = session.admit([watched] * rows)
        if any(entry.ended is None for entry in entries):
            session.step()
        for entry in leaving:
            session.cancel(entry)
        session.admit([request for other, request in zip(line, requests, strict=True) if other.stay is Stay.LATE])
        while any(entry.ended is None for entry in entries):
            session.step()
        return torch.tensor([entry.tokens + [END] * (self.length - len(entry.tokens)) for entry in entries])

    def _request(self, other: Other, length: int, vocab: int) -> Request:
        return Request(
            tokens=[(token + other.shift) % vocab for token in self.prompt[: other.prompt]],
            sampling=self.sampling,
            seed=3 * self.batch + other.shift,
            max_new_tokens=2 if other.stay is Stay.LATE else length,
        )


@dataclass
class BatchRandom:
    """A RandomSource of a batch with some rows that are branches of an enumeration."""

    watched: Tensor  # [B] bool
    branches: RandomSource  # of the watched rows
    others: RandomSource

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law: probs [B, ..., V] -> [B, ...] int64."""
        return self._drawn(probs, lambda source, part: source.categorical(part))

    def bernoulli(self, p: Tensor) -> Tensor:
        """One coin per probability: p [B, ...] -> [B, ...] bool."""
        return self._drawn(p, lambda source, part: source.bernoulli(part))

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """k indices in draw order: probs [B, ..., V] -> [B, ..., k] int64."""
        return self._drawn(probs, lambda source, part: source.without_replacement(part, k))

    def _drawn(self, given: Tensor, draw: Callable[[RandomSource, Tensor], Tensor]) -> Tensor:
        rows = self.watched.nonzero()[:, 0], (~self.watched).nonzero()[:, 0]
        pairs = zip((self.branches, self.others), rows, strict=True)
        found = [draw(source, given[part]) for source, part in pairs if len(part)]
        return torch.cat(found)[torch.cat(rows).argsort()]


class BatchStreams:
    """A session's streams: the watched rows fork, the numbers of the others follow from their seeds."""

    def __init__(self, forks: Forks) -> None:
        """Streams without rows; the first watched row to start is the first branch."""
        self._forks = forks
        self._started = 0
        self._begin(torch.zeros(0, dtype=torch.int64), SeededRandom.of_seeds([]))

    def _begin(self, branch: Tensor, others: SeededRandom) -> None:
        self._branch, self._others = branch, others  # [B] int64, the branch of each row, -1 for the other rows
        watched = branch >= 0
        branches = self._forks.of_rows(branch[watched])
        self.draft = BatchRandom(watched, branches, others.draft)
        self.verify = BatchRandom(watched, branches, others.verify)
        self.position = BatchRandom(watched, branches, others.position)

    def start(self, seeds: Sequence[int]) -> BatchStreams:
        """The streams of new rows, which have not joined these yet."""
        new = BatchStreams(self._forks)
        watched = torch.tensor([seed == WATCHED for seed in seeds])
        branch = (self._started + watched.cumsum(0) - 1).where(watched, -1)
        self._started += int(watched.sum())
        new._begin(branch, SeededRandom.of_seeds([seed for seed in seeds if seed != WATCHED]))
        return new

    def join(self, new: BatchStreams) -> None:
        """Puts the streams of new rows after these."""
        self._others.join(new._others)
        self._begin(torch.cat([self._branch, new._branch]), self._others)

    def advance(self, count: Tensor, most: int) -> None:
        """Ends a cycle: fresh numbers for the other rows; a watched row's draws always fork anew."""
        self._others.advance(count[self._branch < 0], most)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        other = self._branch < 0
        place = other.cumsum(0) - 1  # of each of the others among them
        self._others.keep(place[rows[other[rows]]])
        self._begin(self._branch[rows], self._others)
