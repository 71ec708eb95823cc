"""Sights: the chunks of the text whose keys fit the newest query best."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import ChosenSlots, Committed, CommittedMemory
from specframe_sights.ranking import Ranking


class KeyChunks:
    """The first chunk, the newest tokens, and for each head of keys the chunks that the newest query looks at.

    A chunk's score is the product of the mean of its keys and the queries of the last processed token, added up over
    the heads that share the keys (TriForce, Sun et al. 2024, arXiv 2404.11912, Section 4.1, in which heads share
    none). Tokens that come after a choice take the place of the chunks ranked last.

    Options:
        budget: the most tokens that are seen
        chunk: tokens of a chunk
        recent: how many of the newest tokens are seen whatever their scores, at least
        every: after how many tokens chunks are chosen anew
    """

    per_head = queries = True

    def __init__(self, *, budget: int = 512, chunk: int = 8, recent: int = 64, every: int = 16) -> None:
        if min(chunk, recent, every) < 1:
            raise InputError(f"chunks: chunk, recent and every are at least 1, not {chunk}, {recent} and {every}")
        if budget < (least := recent + 2 * chunk + every):
            raise InputError(
                f"chunks: a budget of {budget} is less than recent + 2 * chunk + every = {least}, which it has to hold"
            )
        self.budget, self.chunk, self.recent, self.every = budget, chunk, recent, every
        self._slots = 0
        self._ranking = Ranking(chunk, budget)
        self._means = torch.zeros(0)  # [layers, slots, heads of keys, chunks, D], of whole chunks
        self._known: list[int] = []  # chunks of each row whose means are known
        self._chosen: list[int] = []  # committed tokens of each row when it was ranked last

    def smaller(self) -> KeyChunks:
        """The same of single tokens: the first one, one that is looked at, and one or two of the newest."""
        return KeyChunks(budget=4, chunk=1, recent=1, every=1)

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows; forgets earlier ones."""
        self._slots = slots
        self._ranking.clear()
        self._means = torch.zeros(0)
        self._known, self._chosen = [], []

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Ranks the chunks of new rows, and of those that were ranked `every` tokens ago."""
        rows = len(memory.counts)
        first = 0 if committed.prompt is None else rows - len(committed.count)
        fresh = [-self.every] * (rows - len(self._chosen))
        self._chosen += fresh
        self._known += [0] * len(fresh)
        due = [row for row in range(first, rows) if memory.counts[row] - self._chosen[row] >= self.every]
        if not due:
            return
        begins = [max(0, memory.counts[row] - self.recent) // self.chunk * self.chunk for row in due]
        queries = memory.queries[:, [row - first for row in due], :, -1]  # [layers, R, heads, D]
        means = self._mean_keys(memory, due, [begin // self.chunk for begin in begins])  # [layers, R, heads, C, D]
        asking = queries.unflatten(2, (means.shape[2], -1)).sum(3)
        scores = (means @ asking[..., None])[..., 0]  # [layers, R, heads of keys, C]
        scores[..., :1] = torch.inf
        self._ranking.put(due, scores, begins, self._slots)
        for row in due:
            self._chosen[row] = memory.counts[row]

    def _mean_keys(self, memory: CommittedMemory, rows: Sequence[int], wanted: Sequence[int]) -> Tensor:
        """The means of the first chunks' keys of rows, `wanted` of each: [layers, R, heads of keys, C, D].

        Behind a row's own chunks stands anything.
        """
        keys, size = memory.keys, self.chunk
        begin, end = min(self._known[row] for row in rows), max(wanted)
        if len(self._means) != len(keys) or self._means.shape[3] < end:
            more = keys.new_zeros(len(keys), self._slots, keys.shape[2], keys.shape[3] // size, keys.shape[4])
            if len(self._means) == len(keys):
                more[:, :, :, : self._means.shape[3]] = self._means
            self._means = more
        which = _few(rows)
        if end > begin:
            fresh = keys[:, which, :, begin * size : end * size].unflatten(3, (end - begin, size))
            self._means[:, which, :, begin:end] = fresh.mean(4)
        for row, known in zip(rows, wanted, strict=True):
            self._known[row] = known
        return self._means[:, which, :, : max(end, 1)]

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """The slots of the best chunks as they were ranked last, and those of all newer tokens."""
        return self._ranking.choose(memory)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._ranking.keep(rows)
        self._means[:, : len(rows)] = self._means[:, rows]
        kept = rows.tolist()
        self._known, self._chosen = ([values[row] for row in kept] for values in (self._known, self._chosen))


def _few(rows: Sequence[int]) -> slice | list[int]:
    """The rows as an index that copies nothing where they follow each other."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else list(rows)
