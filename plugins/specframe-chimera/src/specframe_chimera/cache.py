"""Cache of n-gram states: a fixed number in memory; the least recently used are moved to secondary storage."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from tempfile import TemporaryFile

import torch
from torch import Tensor

from specframe_chimera.session import NOTHING

Gram = tuple[int, ...]


@dataclass
class Lookups:
    """Numbers of requests for n-gram states, by the source that answered them."""

    hits: int = 0
    """States found in memory."""
    stored: int = 0
    """States read back from secondary storage."""
    computed: int = 0

    @property
    def total(self) -> int:
        """Total number of requests."""
        return self.hits + self.stored + self.computed

    @property
    def hit_rate(self) -> float:
        """Share of requests found in memory."""
        return self.hits / self.total if self.total else 0.0

    @property
    def saving(self) -> float:
        """Share of requests that the n-gram encoder did not have to compute."""
        return 1 - self.computed / self.total if self.total else 0.0


class Shelf:
    """Secondary storage: states in an unnamed temporary file, one record each, deleted with the object."""

    def __init__(self) -> None:
        with ExitStack() as opened:
            self._file = opened.enter_context(TemporaryFile())
            weakref.finalize(self, opened.pop_all().close)  # the file stays open as long as the object exists
        self._records: dict[Gram, int] = {}
        self._like: Tensor | None = None

    def __contains__(self, gram: Gram) -> bool:
        return gram in self._records

    def put(self, grams: Sequence[Gram], states: Tensor) -> None:
        """Stores states [M, D]; stored n-grams are not written again."""
        self._like = states[:1]
        new = [place for place, gram in enumerate(grams) if gram not in self]
        if new:
            self._file.seek(0, 2)
            self._file.write(states[new].cpu().view(torch.uint8).numpy().tobytes())
            self._records |= {grams[place]: len(self._records) + count for count, place in enumerate(new)}

    def get(self, grams: Sequence[Gram]) -> Tensor:
        """Returns the stored states of n-grams, [M, D]."""
        assert self._like is not None
        size = self._like.nbytes
        records = bytearray()
        for gram in grams:
            self._file.seek(self._records[gram] * size)
            records += self._file.read(size)
        states = torch.frombuffer(records, dtype=self._like.dtype)
        return states.view(len(grams), -1).to(self._like.device)


class NGramCache:
    """States of n-grams, each computed once (Chimera Section 3.2.1).

    A lookup copies the n-grams to the host.

    Args:
        compute: maps n-grams to states, [M, n] -> [M, D]; after its weights change, call `clear`.
        capacity: number of states kept in memory.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor], capacity: int) -> None:
        self.compute = compute
        self.capacity = capacity
        self.lookups = Lookups()
        self.clear()

    def clear(self) -> None:
        """Removes all states."""
        self._rows: OrderedDict[Gram, int] = OrderedDict()  # n-gram -> row of the table, least recently used first
        self._table: Tensor | None = None  # [capacity, D]
        self._shelf: Shelf | None = None  # created once memory is full

    def __call__(self, grams: Tensor) -> Tensor:
        """Returns the states of n-grams, [.., n] -> [.., D]; n-grams that are all NOTHING are padding, not counted."""
        states = [self._look(part) for part in grams.flatten(0, -2).split(self.capacity)]
        return torch.cat(states).view(*grams.shape[:-1], -1)

    def fill(self, grams: Tensor) -> None:
        """Computes the states of n-grams [M, n] in advance."""
        before = replace(self.lookups)
        self(grams)
        self.lookups = before

    def _look(self, grams: Tensor) -> Tensor:
        """Returns the states of n-grams [M, n], all of which fit into memory together."""
        wanted: list[Gram] = list(map(tuple, grams.tolist()))
        fresh: dict[Gram, int] = {}  # first index of each n-gram that is not in memory
        for place, gram in enumerate(wanted):
            if gram in self._rows:
                self._rows.move_to_end(gram)
            elif gram not in fresh:
                fresh[gram] = place
        shelf = self._shelf
        stored = [] if shelf is None else [gram for gram in fresh if gram in shelf]
        for gram in stored:
            del fresh[gram]
        if stored and shelf is not None:
            self._keep(stored, shelf.get(stored))
        if fresh:
            self._keep(list(fresh), self.compute(grams[list(fresh.values())]))
        self._count(wanted, stored, list(fresh))
        assert self._table is not None
        return self._table[[self._rows[gram] for gram in wanted]]

    def _keep(self, grams: list[Gram], states: Tensor) -> None:
        """Stores states [M, D] in the table, replacing the least recently used."""
        if self._table is None:
            self._table = states.new_zeros(self.capacity, states.shape[1])
        room = range(len(self._rows), min(self.capacity, len(self._rows) + len(grams)))
        old = dict(self._rows.popitem(last=False) for _ in range(len(grams) - len(room)))
        rows = [*room, *old.values()]
        if old:
            self._shelf = self._shelf or Shelf()
            self._shelf.put(list(old), self._table[list(old.values())])
        self._table[rows] = states
        self._rows.update(zip(grams, rows, strict=True))

    def _count(self, wanted: list[Gram], stored: list[Gram], computed: list[Gram]) -> None:
        total, reads, misses = (sum(gram[-1] != NOTHING for gram in grams) for grams in (wanted, stored, computed))
        self.lookups.hits += total - reads - misses
        self.lookups.stored += reads
        self.lookups.computed += misses
