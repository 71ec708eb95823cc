"""The distribution of what one row emits among other rows: admitted before and after it, with prompts of their own.

A part that mixes rows up can be right for every row alone, and for rows that all decode the same text. So a row is also
enumerated in company: the other rows' random numbers are given, and whatever they are, this row must emit the target's
distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.certify.own.emission import END, Comparison, Emission, compare
from specframe.certify.own.enumeration import Progress, enumerate_outcomes
from specframe.certify.own.forks import Forks
from specframe.decoding.requests import Request
from specframe.decoding.session import Session
from specframe.kernel.interfaces import RandomSource
from specframe.sampling.random import SeededRandom

WATCHED = -1
"""The seed of the row that is enumerated; the others have seeds of their own."""


@dataclass(frozen=True)
class Accompanied(Emission):
    """An emission whose row is decoded with others: two admitted earlier, one that joins later and ends first."""

    company: int = 0
    """Names the random numbers of the others."""

    def program(self, random: Forks, rows: int) -> Tensor:
        """The real session on one branch: [1, length] int64, END after the last token."""
        parts = self.parts()
        vocab = parts.target.vocab_size
        longest = (self.length + 2) * parts.nodes  # the first two of the others are there to the end
        watched = Request(
            tokens=self.prompt, sampling=self.sampling, seed=WATCHED, max_new_tokens=self.length, ends=self.ends
        )
        others = [
            Request(
                tokens=[(token + shift) % vocab for token in self.prompt[:count]],
                sampling=self.sampling,
                seed=3 * self.company + shift,
                max_new_tokens=length,
            )
            for shift, count, length in ((1, 3, longest), (2, 5, longest), (0, 4, 2))
        ]
        room = len(self.prompt) + longest + parts.nodes
        session = Session(parts, 4, room, random=CompanyStreams(random))
        for other in others[:2]:
            session.admit([other])
            session.step()
        (entry,) = session.admit([watched])
        if entry.ended is None:
            session.step()
        session.admit(others[2:])
        while entry.ended is None:
            session.step()
        return torch.tensor([entry.tokens + [END] * (self.length - len(entry.tokens))])

    def compare(
        self, *, budget: int = 3000, rows: int = 1, progress: Callable[[Progress], None] | None = None
    ) -> Comparison:
        """The emitted law against the target's, one branch at a time."""
        with torch.inference_mode():
            emitted = enumerate_outcomes(self.program, budget=budget, rows=1, progress=progress)
            return compare(self.target_law(), emitted, first=2)


@dataclass
class Company:
    """A RandomSource of a batch of which some rows are branches of an enumeration."""

    watched: Tensor  # [B] bool
    branches: RandomSource
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


class CompanyStreams:
    """A session's streams: the watched row forks, the numbers of the others follow from their seeds."""

    def __init__(self, forks: Forks) -> None:
        """Streams without rows; the watched row is the enumeration's first branch."""
        self._forks = forks
        self._begin(torch.zeros(0, dtype=torch.bool), SeededRandom.of_seeds([]))

    def _begin(self, watched: Tensor, others: SeededRandom) -> None:
        self._watched, self._others = watched, others
        branches = self._forks.of_rows(torch.arange(int(watched.sum())))
        self.draft = Company(watched, branches, others.draft)
        self.verify = Company(watched, branches, others.verify)
        self.position = Company(watched, branches, others.position)

    def start(self, seeds: Sequence[int]) -> CompanyStreams:
        """The streams of new rows, which have not joined these yet."""
        new = CompanyStreams(self._forks)
        others = SeededRandom.of_seeds([seed for seed in seeds if seed != WATCHED])
        new._begin(torch.tensor([seed == WATCHED for seed in seeds]), others)
        return new

    def join(self, new: CompanyStreams) -> None:
        """Puts the streams of new rows behind these."""
        self._others.join(new._others)
        self._begin(torch.cat([self._watched, new._watched]), self._others)

    def advance(self, count: Tensor, most: int) -> None:
        """Ends a cycle: fresh numbers for the other rows; the watched row's draws always fork anew."""
        self._others.advance(count[~self._watched], most)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        place = (~self._watched).cumsum(0) - 1  # of each of the others among them
        self._others.keep(place[rows[~self._watched[rows]]])
        self._begin(self._watched[rows], self._others)
