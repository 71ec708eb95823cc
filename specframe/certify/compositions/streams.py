"""A session's random streams in an enumeration."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.certify.compositions.branches import Forks


class ForkedStreams:
    """The streams of a session whose rows are branches of an enumeration, in the order of their admission.

    They take the place of `SeededRandom`, so the real session runs on them unchanged. All streams fork the same run.
    """

    def __init__(self, forks: Forks) -> None:
        """Streams without rows; the first row to start is the first branch."""
        self._forks = forks
        self._started = 0
        # One source for the whole session: who holds it draws for the rows that are live then.
        self.draft = self.verify = self.position = forks.of_rows(torch.arange(0))

    def start(self, seeds: Sequence[int]) -> ForkedStreams:
        """The next branches as new rows; their seeds mean nothing here."""
        first, self._started = self._started, self._started + len(seeds)
        new = ForkedStreams(self._forks)
        new.draft.rows = torch.arange(first, self._started)
        return new

    def join(self, new: ForkedStreams) -> None:
        """Puts the branches of new rows behind these."""
        self.draft.rows = torch.cat([self.draft.rows, new.draft.rows])

    def advance(self, count: Tensor, most: int) -> None:
        """A new cycle: nothing to do, every fork is fresh."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others have ended their branch."""
        self.draft.rows = self.draft.rows[rows.cpu()]
