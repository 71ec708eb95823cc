"""The distribution of what one row emits among other rows: admitted before and after it, with prompts of their own.

A part that mixes rows up can be right for every row alone, and for rows that all decode the same text. So a row is also
enumerated in company: the other rows' random numbers are given, and whatever they are, this row must emit the target's
distribution. Its branches run side by side; where that changes a branch's draws they are run once more, each alone with
the company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Accompanied(Emission):
    """An emission whose row is decoded with others: two admitted earlier, one that joins later and ends first."""

    company: int = 0
    """Names the random numbers of the others."""

    def program(self, random: Forks, rows: int) -> Tensor:
        """The real session on `rows` branches and three other rows: [rows, length] int64, END after the last token."""
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
        session = Session(parts, rows + len(others), room, random=CompanyStreams(random))
        for other in others[:2]:
            session.admit([other])
            session.step()
        entries = session.admit([watched] * rows)
        if any(entry.ended is None for entry in entries):
            session.step()
        session.admit(others[2:])
        while any(entry.ended is None for entry in entries):
            session.step()
        return torch.tensor([entry.tokens + [END] * (self.length - len(entry.tokens)) for entry in entries])


@dataclass
class Company:
    """A RandomSource of a batch of which some rows are branches of an enumeration."""

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


class CompanyStreams:
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
        self.draft = Company(watched, branches, others.draft)
        self.verify = Company(watched, branches, others.verify)
        self.position = Company(watched, branches, others.position)

    def start(self, seeds: Sequence[int]) -> CompanyStreams:
        """The streams of new rows, which have not joined these yet."""
        new = CompanyStreams(self._forks)
        watched = torch.tensor([seed == WATCHED for seed in seeds])
        branch = (self._started + watched.cumsum(0) - 1).where(watched, -1)
        self._started += int(watched.sum())
        new._begin(branch, SeededRandom.of_seeds([seed for seed in seeds if seed != WATCHED]))
        return new

    def join(self, new: CompanyStreams) -> None:
        """Puts the streams of new rows behind these."""
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
