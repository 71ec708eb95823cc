"""KV selections: the chunks of the text whose keys match the newest query best."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import ChosenSlots, Committed, CommittedMemory
from specframe_self.selections.means import MeanKeys
from specframe_self.selections.ranking import Ranking


class KeyChunks:
    """The first chunk, the newest tokens, and for each key head the chunks that the newest query attends to.

    A chunk's score is the product of the mean of its keys and the queries of the last processed token, summed over the
    heads that share the keys (TriForce, Sun et al. 2024, arXiv 2404.11912, Section 4.1, where heads share no keys).
    Tokens that come after a choice replace the chunks ranked last.

    Options:
        budget: maximum number of tokens that are seen
        chunk: number of tokens in a chunk
        recent: minimum number of newest tokens that are always seen
        every: number of tokens after which chunks are chosen again
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
        self._ranking, self._means = Ranking(chunk, budget), MeanKeys(chunk)
        self._chosen: list[int] = []  # committed tokens of each row at its last ranking

    def smaller(self) -> KeyChunks:
        """Returns a copy that chooses single tokens: the first, one attended to, and one or two of the newest."""
        return KeyChunks(budget=4, chunk=1, recent=1, every=1)

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows; drops earlier ones."""
        self._slots = slots
        self._ranking.clear()
        self._means.clear()
        self._chosen = []

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Ranks the chunks of new rows, and of those that were ranked `every` tokens ago."""
        rows = len(memory.counts)
        first = 0 if committed.prompt is None else rows - len(committed.count)
        self._chosen += [-self.every] * (rows - len(self._chosen))
        due = [row for row in range(first, rows) if memory.counts[row] - self._chosen[row] >= self.every]
        if not due:
            return
        begins = [max(0, memory.counts[row] - self.recent) // self.chunk * self.chunk for row in due]
        queries = memory.queries[:, [row - first for row in due], :, -1]  # [layers, R, heads, D]
        wanted = [begin // self.chunk for begin in begins]
        means = self._means.of(memory, due, wanted, self._slots)  # [layers, R, key heads, C, D]
        asking = queries.unflatten(2, (means.shape[2], -1)).sum(3)
        scores = (means @ asking[..., None])[..., 0]  # [layers, R, key heads, C]
        scores[..., :1] = torch.inf
        self._ranking.put(due, scores, begins, self._slots)
        for row in due:
            self._chosen[row] = memory.counts[row]

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns the slots of the best chunks at the last ranking, and those of all newer tokens."""
        return self._ranking.choose(memory)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._ranking.keep(rows)
        self._means.keep(rows)
        self._chosen = [self._chosen[row] for row in rows.tolist()]
