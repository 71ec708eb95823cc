"""Ranked pieces of texts: the best of them and the newest tokens together fill a budget of slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, pad

from specframe import InputError
from specframe.neural import tensor_on
from specframe.plugin import NEWEST_QUERIES, ChosenSlots, CommittedMemory


class Ranking:
    """The best pieces of every row's older tokens, for each layer and key head; newer tokens are all seen.

    As a row grows, its newest tokens replace the pieces ranked last.

    Args:
        size: tokens of a piece; piece i begins at token i * size.
        budget: maximum number of slots that are chosen.
    """

    def __init__(self, size: int, budget: int) -> None:
        self._size, self._budget = size, budget
        self._most = budget // size  # number of pieces that are stored
        self._pieces = torch.zeros(0)  # [layers, slots, key heads, most], best first
        self._begins: list[int] = []  # first newer token of each row, a multiple of the size

    def clear(self) -> None:
        """Drops all rows."""
        self._pieces, self._begins = torch.zeros(0), []

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._pieces[:, : len(rows)] = self._pieces[:, rows]
        self._begins = [self._begins[row] for row in rows.tolist()]

    def put(self, rows: Sequence[int], scores: Tensor, begins: Sequence[int], slots: int) -> None:
        """Ranks rows, of at most `slots`, by the scores [layers, R, key heads, C] of pieces.

        Only the pieces before `begins`, the first newer token of each row, are ranked. New rows follow the others.
        """
        device = scores.device
        ends = tensor_on(device, begins) // self._size
        older = torch.arange(scores.shape[-1], device=device) < ends[:, None, None]  # [R, 1, C]
        count = min(self._most, scores.shape[-1])
        self.put_best(rows, scores.masked_fill(~older, -torch.inf).topk(count, -1).indices, begins, slots)

    def put_best(self, rows: Sequence[int], best: Tensor, begins: Sequence[int], slots: int) -> None:
        """Stores the pieces of rows that are already ranked, [layers, R, key heads, budget / size or fewer]."""
        if len(self._pieces) != len(best) or self._pieces.shape[1] < slots:
            self._pieces = best.new_zeros(len(best), slots, best.shape[2], self._most)
        self._pieces[:, list(rows)] = pad(best, (0, self._most - best.shape[3]))
        self._begins += [0] * (max(rows) + 1 - len(self._begins))
        for row, begin in zip(rows, begins, strict=True):
            self._begins[row] = begin

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns the slots of the best pieces, and of all newer tokens of every row."""
        size, device = self._size, memory.count.device
        starts = [
            max(begin, have - self._budget + size) for begin, have in zip(self._begins, memory.counts, strict=True)
        ]
        ranked = [
            min((self._budget - have + start) // size, begin // size)
            for start, begin, have in zip(starts, self._begins, memory.counts, strict=True)
        ]
        ends = [taken * size + have - start for taken, start, have in zip(ranked, starts, memory.counts, strict=True)]
        layers, _, heads, _ = self._pieces.shape
        slots = self._pieces.new_full((layers, len(ends), heads, max(ends)), -1)
        within = torch.arange(size, device=device)
        for row, (taken, start, end) in enumerate(zip(ranked, starts, ends, strict=True)):
            best = self._pieces[:, row, :, :taken].sort(-1).values * size
            slots[:, row, :, : taken * size] = (best[..., None] + within).flatten(2)
            slots[:, row, :, taken * size : end] = torch.arange(start, start + end - taken * size, device=device)
        return ChosenSlots(slots)


class PromptRanking:
    """The tokens of prompts, ranked once by pooled attention mass; a prompt's last `window` tokens are always seen.

    Raises InputError for sizes that do not fit, in the name of a KV selection.
    """

    def __init__(self, name: str, budget: int, window: int, pool: int) -> None:
        if not 1 <= window <= NEWEST_QUERIES:
            raise InputError(f"{name}: the window has 1 to {NEWEST_QUERIES} queries, not {window}")
        if pool < 1 or pool % 2 == 0:
            raise InputError(f"{name}: pool is an odd number of neighbours, not {pool}")
        if budget <= window:
            raise InputError(f"{name}: a budget of {budget} does not exceed the window of {window}, which it holds")
        self._window, self._pool, self._slots = window, pool, 0
        self._ranking = Ranking(1, budget)

    def open(self, slots: int) -> None:
        """Begins a session of at most `slots` rows; drops earlier ones."""
        self._slots = slots
        self._ranking.clear()

    def put(self, mass: Tensor, memory: CommittedMemory, first: int) -> None:
        """Ranks the tokens of the rows from `first` on by their attention mass, [layers, R, key heads, S]."""
        begins = [max(0, have - self._window) for have in memory.counts[first:]]
        older = torch.arange(mass.shape[-1], device=mass.device) < tensor_on(mass.device, begins)[:, None]
        mass = mass * older[:, None]
        pooled = max_pool1d(mass.flatten(0, 1), self._pool, 1, self._pool // 2).view_as(mass)
        self._ranking.put(range(first, len(memory.counts)), pooled, begins, self._slots)

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns the slots of the best-ranked tokens, of the window, and of the answer."""
        return self._ranking.choose(memory)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._ranking.keep(rows)
