"""The distribution of one row's output in a batch with other rows, admitted before and after it with other prompts.

A part that mixes up rows can be correct for single rows and for batches of equal texts. A row is therefore also
enumerated among others with fixed random numbers; for any such numbers it must emit the target's distribution. Its
branches run in parallel; if that changes a branch's draws, they are run again one by one, each with the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from specframe.certify.compositions.branches import BranchSource, Forks
from specframe.certify.compositions.emission import END, Emission
from specframe.certify.compositions.guided import Forced
from specframe.decoding.requests import Entry, Request
from specframe.decoding.session import Session
from specframe.kernel.sampling import RandomSource
from specframe.kernel.types import Committed, Cycle, Scores, Verdict
from specframe.sampling.laws import Processor
from specframe.sampling.random import SeededRandom

WATCHED = -1
"""The seed of the enumerated row; the others have different seeds."""
TEMPERATURES = (0.0, None, 0.6)
"""Temperatures of the other rows of a mixed batch, cyclically; None: the watched row's."""


@dataclass(frozen=True)
class Other:
    """A row next to the watched one. Times are cycles since the watched row's admission."""

    shift: int
    """Offset added to every token of the prompt to make it different."""
    prompt: int
    """Length of its prompt in tokens."""
    joins: int = 0
    leaves: int | None = None
    """Time at which it is cancelled; None: never."""
    tokens: int | None = None
    """Number of tokens after which it ends; None: it outlasts the watched row."""


@dataclass(frozen=True)
class RowsOfBatch:
    """The other rows of a batch, and the place of the watched row among those that are admitted with it."""

    others: tuple[Other, ...] = ()
    before: int = 0
    """Number of the others admitted before the watched row, at its own time."""
    mixed: bool = False
    """True if the rows have different samplings: greedy ones among sampled ones."""
    size: int | None = None
    """Number of rows of the batch, the branches that run side by side included; None: as many as there are."""
    number: int = 0
    """Number that selects the random numbers of the others."""

    @classmethod
    def of_size(cls, size: int, before: int, *, mixed: bool = False) -> RowsOfBatch:
        """A batch of one size from the watched row's admission on."""
        others = tuple(Other(place, 3 + place // 3) for place in range(1, size))
        return cls(others, before, mixed, size, 4 + size)

    def for_branches(self, rows: int) -> tuple[Other, ...]:
        """The others of a call with this number of branches: a batch of one size has fewer for more branches."""
        return self.others if self.size is None else self.others[: self.size - rows]

    def temperature(self, place: int, watched: float) -> float:
        """The temperature of one of the others."""
        other = TEMPERATURES[place % len(TEMPERATURES)] if self.mixed else None
        if self.mixed and watched == 0:
            return 1.0
        return watched if other is None else other


STAYING = (Other(1, 3, joins=-2), Other(2, 5, joins=-1), Other(0, 4, joins=1, tokens=2))
LEAVING = (Other(1, 3, joins=-2, leaves=1), Other(2, 5, joins=-1))
"""An earlier row leaves while the watched row is the last one, which takes its place."""
BATCHES = (
    RowsOfBatch(STAYING),
    RowsOfBatch(STAYING, mixed=True, number=1),
    RowsOfBatch(LEAVING, number=2),
    RowsOfBatch(LEAVING, mixed=True, number=3),
)
LEAVES_TWICE = RowsOfBatch(
    (
        *(Other(place, 2 + place, joins=-2, leaves=2) for place in (1, 2)),
        Other(3, 5, joins=-1, leaves=1),
        Other(4, 4, joins=-1),
        Other(5, 3, joins=3),
    ),
    number=4,
)
"""One earlier row leaves, then two at once: the watched row moves each time, and has a choice before one joins."""


@dataclass(frozen=True)
class Accompanied(Emission):
    """An emission whose row is decoded with others, who stay, leave before it, or join later."""

    batch: RowsOfBatch = RowsOfBatch()

    @classmethod
    def of(cls, emission: Emission, batch: RowsOfBatch) -> Accompanied:
        """The emission in this batch."""
        return cls(**{each.name: getattr(emission, each.name) for each in fields(emission)}, batch=batch)

    @property
    def processors(self) -> tuple[Processor, ...]:
        """The processors of the others, whose texts are not forced: they differ from the watched row's."""
        return tuple(each for each in self.sampling.processors if not isinstance(each, Forced))

    def program(self, random: Forks, rows: int) -> Tensor:
        """The real session on `rows` branches and other rows: [rows, length] int64, END after the last token."""
        parts = self.parts()
        longest = (self.length + 2) * parts.nodes
        watched = Request(
            tokens=self.prompt, sampling=self.sampling, seed=WATCHED, max_new_tokens=self.length, ends=self.ends
        )
        line = self.batch.for_branches(rows)
        requests = [self._request(place, other, longest, parts.target.vocab_size) for place, other in enumerate(line)]
        room = len(self.prompt) + longest + parts.nodes
        leaving: list[tuple[int, Entry]] = []
        time = 0

        def watch(cycle: Cycle) -> None:
            for left, entry in leaving:  # within a cycle, so that several rows leave at once
                if left == time:
                    session.cancel(entry)
            branches = [row for row, entry in enumerate(session.cycle_rows) if entry.request.seed == WATCHED]
            if self.watch is not None and branches:
                self.watch(rows_of(cycle, torch.tensor(branches)))

        session = Session(parts, rows + len(line), room, random=BatchStreams(random), watch=watch)

        def admit(chosen: Sequence[int]) -> None:
            entries = session.admit([requests[place] for place in chosen])
            leaving.extend(
                (left, entry)
                for place, entry in zip(chosen, entries, strict=True)
                if (left := line[place].leaves) is not None
            )

        for early in sorted({other.joins for other in line if other.joins < 0}):
            admit([place for place, other in enumerate(line) if other.joins == early])
            session.step()
        now = [place for place, other in enumerate(line) if other.joins == 0]
        admit(now[: self.batch.before])
        entries = session.admit([watched] * rows)
        admit(now[self.batch.before :])
        while any(entry.ended is None for entry in entries):
            time += 1
            session.step()
            admit([place for place, other in enumerate(line) if other.joins == time])
        return torch.tensor([entry.tokens + [END] * (self.length - len(entry.tokens)) for entry in entries])

    def _request(self, place: int, other: Other, length: int, vocab: int) -> Request:
        return Request(
            tokens=[(token + other.shift) % vocab for token in self.prompt[: other.prompt]],
            sampling=replace(
                self.sampling,
                temperature=self.batch.temperature(place, self.sampling.temperature),
                processors=self.processors,
            ),
            seed=3 * self.batch.number + other.shift,
            max_new_tokens=other.tokens or length,
        )


def rows_of(cycle: Cycle, rows: Tensor) -> Cycle:
    """A cycle's rows, int64 [R], without features."""
    verdict = Verdict(cycle.verdict.path[rows], cycle.verdict.length[rows], cycle.verdict.bonus[rows])
    committed = cycle.committed
    return Cycle(
        draft=cycle.draft.take(rows),
        scores=Scores(cycle.scores.logits[rows], {}),
        verdict=verdict,
        committed=Committed(committed.tokens[rows], committed.count[rows], {}, committed.root[rows]),
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
        self.draft = BranchSource(BatchRandom(watched, branches, others.draft))
        self.verify = BranchSource(BatchRandom(watched, branches, others.verify))
        self.position = BranchSource(BatchRandom(watched, branches, others.position))

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
