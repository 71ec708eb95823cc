"""KV selections: the chunks of the text to which the last verification attended most."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.neural import ChunkKeys, tensor_on
from specframe.plugin import ChosenSlots, Committed, CommittedMemory
from specframe_self.selections.means import MeanKeys, PackedMeans
from specframe_self.selections.ranking import Ranking


class Verified:
    """The first chunk, the newest tokens, and for each key head the chunks that the last verification attended to most.

    It chooses again in every cycle. A chunk's score is the attention to the mean of its keys, summed over the queries
    of the root and the accepted tokens, and over the heads that share the keys; after a prompt, over its last queries.

    Sources: SparseSpec (Zhao et al. 2025, arXiv 2512.01278) and SpecAttn (2026, arXiv 2602.07223). There, verification
    keeps its scores of every token. Recomputing those would take longer than drafts save, and means of 8 keys take an
    eighth of it; `chunk: 1` scores every token. Native code, where in use, computes them from means and queries in
    bfloat16.

    Options:
        budget: maximum number of tokens that are seen
        chunk: number of tokens in a chunk
        recent: minimum number of newest tokens that are always seen
    """

    per_head = queries = True

    def __init__(self, *, budget: int = 512, chunk: int = 8, recent: int = 64) -> None:
        if min(chunk, recent) < 1:
            raise InputError(f"verified: chunk and recent are at least 1, not {chunk} and {recent}")
        if budget < (least := recent + 2 * chunk):
            raise InputError(f"verified: a budget of {budget} is less than recent + 2 * chunk = {least}")
        self.budget, self.chunk, self.recent = budget, chunk, recent
        self._slots = 0
        self._ranking, self._means, self._packed = Ranking(chunk, budget), MeanKeys(chunk), PackedMeans(chunk)
        self._native: bool | None = None  # True if native code ranks; constant within a session

    def smaller(self) -> Verified:
        """Returns a copy that chooses single tokens: the first one, one that was attended to, and the newest."""
        return Verified(budget=3, chunk=1, recent=1)

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows; drops earlier ones."""
        self._slots = slots
        self._ranking.clear()
        self._means.clear()
        self._packed.clear()
        self._native = None

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Ranks the chunks of the rows that were just verified."""
        rows = len(memory.counts)
        first = rows - len(committed.count)
        begins = [max(0, have - self.recent) // self.chunk * self.chunk for have in memory.counts[first:]]
        ends = [begin // self.chunk for begin in begins]
        if self._native is None:
            self._native = ChunkKeys.fits(memory.keys)
        if self._native:
            queries = memory.queries
            asked = [min(count, queries.shape[3]) for count in committed.count.tolist()]
            pieces = self._packed.read(memory, range(first, rows), ends, self._slots)
            best = pieces.best(first, queries, asked, ends, self.budget // self.chunk)
            self._ranking.put_best(range(first, rows), best, begins, self._slots)
        else:
            self._ranking.put(range(first, rows), self._votes(committed, memory, first, ends), begins, self._slots)

    def _votes(self, committed: Committed, memory: CommittedMemory, first: int, ends: list[int]) -> Tensor:
        """Returns the scores of the chunks of the rows from `first` on, [layers, R, key heads, C]."""
        rows = len(memory.counts)
        means = self._means.of(memory, range(first, rows), ends, self._slots)  # [layers, R, key heads, C, D]
        queries = memory.queries.unflatten(2, (means.shape[2], -1))  # [layers, R, key heads, shared, T, D]
        logits = queries.flatten(3, 4) @ means.transpose(-1, -2)  # [layers, R, key heads, shared * T, C]
        place = torch.arange(logits.shape[-1], device=logits.device)
        newer = place >= tensor_on(logits.device, ends).clamp(min=1)[:, None]  # [R, C]
        shares = logits.masked_fill(newer[:, None, None], -torch.inf).softmax(-1)
        if min(committed.counts) < (steps := queries.shape[4]):  # shorter rows' queries begin with 0
            asked = torch.arange(steps, device=logits.device) >= steps - committed.count[:, None]  # [R, T]
            shares = shares * asked.repeat(1, queries.shape[3])[:, None, :, None]
        mass = shares.sum(3)
        mass[..., :1] = torch.inf
        return mass

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns the slots of the best chunks, and those of all newer tokens."""
        return self._ranking.choose(memory)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._ranking.keep(rows)
        self._means.keep(rows)
        self._packed.keep(rows)
