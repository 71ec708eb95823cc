"""Costs of forward passes on a machine, and how much of a draft is worth its cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from specframe.kernel.errors import InputError

PRIOR = (64.0, 32.0, 48.0, 64.0)
"""Prior counts, before anything is decoded: drafts of rows, their accepted tokens, nodes, and drafter passes.

Two of three nodes are assumed to be accepted, since only likely nodes are scored.
"""
WINDOW = 1024
"""Number of recent row drafts that a record averages over."""
PATIENCE, LONGEST = 256, 4096
"""Cycles without drafts after which a record returns to the prior; doubled each time, up to the second number."""


class DraftRecord:
    """Accepted tokens and costs of the recent drafts of rows that choose together, starting from a prior."""

    def __init__(self) -> None:
        self._sums, self._skipped, self._patience = [*PRIOR], 0, PATIENCE

    @property
    def rates(self) -> tuple[float, float, float]:
        """Mean accepted tokens, nodes and drafter passes of a row's draft."""
        drafts, accepted, nodes, passes = self._sums
        return accepted / drafts, nodes / drafts, passes / drafts

    def add(self, rows: int, accepted: int, nodes: int, passes: int) -> None:
        """Counts the drafts of `rows` rows: their total accepted tokens and nodes, and the batched drafter passes."""
        added_sums = [old + new for old, new in zip(self._sums, (rows, accepted, nodes, passes * rows), strict=True)]
        shrink = min(1.0, WINDOW / added_sums[0])
        self._sums = [shrink * each for each in added_sums]

    def skip(self) -> None:
        """Counts a cycle without drafts; after many the record returns to the prior, so that rows draft again."""
        self._skipped += 1
        if self._skipped == self._patience:
            self._sums, self._skipped, self._patience = [*PRIOR], 0, min(2 * self._patience, LONGEST)


@dataclass(frozen=True)
class Costs:
    """Times of forward passes, which decide how many nodes and levels of a draft are worth their cost.

    A node pays if its expected tokens exceed those that decoding without drafts would give in the time of scoring it. A
    machine that scores sixteen nodes as fast as one gets drafts of sixteen; where the cost grows with every node, a
    draft has few. The distribution of the output does not depend on the costs.
    """

    passes: tuple[tuple[int, float], ...]
    """(nodes, seconds) of the target's forward passes over one row, in ascending order from one node on."""
    draft: float = 0.0
    """Seconds of a drafter's forward pass over one row."""
    draft_row: float = 0.0
    """Additional seconds of that pass for each further row."""
    row: float = 0.0
    """Additional seconds of the target's pass for each further row, its node not counted."""
    row_drafted: float = 0.0
    """Additional seconds of that pass for each further row that has a draft, its nodes not counted."""
    read: float = 0.0
    """Seconds in which a drafter reads a token that was committed in a cycle without drafts."""
    rows: int | None = None
    """Number of rows decoded together; None: the session's current number, or one where that is not known."""
    context: int = 0
    """Number of committed tokens after which the passes were timed."""
    longer: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()
    """(tokens, passes): the passes after more committed tokens, in ascending order."""
    taken: int = 0
    """Number of drafted nodes that are scored in any case, in addition to those chosen by cost."""
    record: DraftRecord | None = field(default=None, compare=False)
    """Record shared by rows that choose together when to draft nothing; no row's text depends on its drafts."""
    ragged: bool = False
    """True if rows that choose together may differ in their nodes: a pass takes the time of the valid ones alone."""

    unread: int = field(default=0, compare=False)
    """Tokens, over all rows, that a drafter would have to read before it drafts."""
    left: int = field(default=1, compare=False)
    """Tokens, over all rows, that may still be generated."""

    known: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    """Cache of a pass's seconds by number of nodes."""
    lengths: dict[int, Costs] = field(default_factory=dict, compare=False, repr=False)
    """Cache of the costs after more committed tokens."""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.passes]
        if not sizes or sizes[0] != 1 or sizes != sorted(set(sizes)):
            raise InputError("costs need the seconds of a forward pass over 1 node, and over more in ascending order")
        if min(seconds for _, seconds in self.passes) <= 0 or self.draft < 0:
            raise InputError("costs are seconds, and a forward pass takes more than none")

    @classmethod
    def of(cls, seconds: Mapping[int, float], draft: float = 0.0) -> Costs:
        """Returns costs from timed seconds by number of nodes, adjusted so that more nodes never take less."""
        return cls(tuple(rising(sorted(seconds.items()))), draft)

    def as_data(self) -> dict[str, Any]:
        """The times as plain data, without cached values."""
        names = ("passes", "draft", "draft_row", "row", "row_drafted", "read", "rows", "context", "longer", "taken")
        return {name: getattr(self, name) for name in names}

    def after(self, tokens: int) -> Costs:
        """Returns the costs after that number of committed tokens, interpolated linearly between timed numbers.

        Numbers with the same four leading bits share the costs of the smallest. Beyond the largest timed number its
        costs apply.
        """
        step = 1 << max(tokens.bit_length() - 4, 0)
        tokens = min(tokens // step * step, self.longer[-1][0] if self.longer else 0)
        if tokens <= self.context:
            return self
        if tokens not in self.lengths:
            timed = [(self.context, self), *((count, Costs(passes)) for count, passes in self.longer)]
            place = bisect_left(timed, tokens, key=lambda each: each[0])
            (less, low), (more, high) = timed[place - 1 : place + 1]
            share = (tokens - less) / (more - less)
            passes = ((size, low._seconds(size) * (1 - share) + high._seconds(size) * share) for size, _ in self.passes)
            self.lengths[tokens] = replace(self, passes=tuple(passes), context=tokens, longer=(), known={}, lengths={})
        return self.lengths[tokens]

    def with_required_nodes(self, nodes: int) -> Costs:
        """Returns these costs for choosing nodes on top of `nodes` further ones that are scored in any case."""
        return replace(self, taken=self.taken + nodes, lengths={})

    def together(
        self, lengths: Sequence[int], record: DraftRecord, ragged: bool = False, unread: int = 0, left: int = 1
    ) -> Costs:
        """Returns these costs for rows of these lengths in tokens; several rows choose together.

        If the number of rows is fixed, each row chooses by itself, and by its length only if it is the only one.
        """
        if self.rows is not None:
            return self.after(lengths[0]) if self.rows == 1 else self
        costs = self.after(max(lengths))
        if len(lengths) > 1:
            return replace(costs, rows=len(lengths), record=record, ragged=ragged, unread=unread, left=left)
        return costs.single_row

    @cached_property
    def single_row(self) -> Costs:
        """These costs for one row."""
        return replace(self, rows=1, record=None, ragged=False)

    def score(self, nodes: int) -> float:
        """Returns the cost of scoring `nodes` nodes of every row, the root included.

        The unit is the time in which decoding without drafts gives a row one token.
        """
        rows = self.rows or 1
        drafted = self.row_drafted * (rows - 1) if nodes > 1 else 0.0
        return (self._seconds(nodes * rows) + self.row * (rows - 1) + drafted) / self._plain

    def spread(self, nodes: int) -> float:
        """Returns the cost, for all rows, of scoring `nodes` nodes of any rows beyond those scored in any case."""
        rows = self.rows or 1
        more = self.row * (rows - 1) + self.row_drafted * min(self.taken * rows + nodes, rows - 1)
        return (self._seconds((self.taken + 1) * rows + nodes) + more) / self._plain * rows

    @property
    def level(self) -> float:
        """Cost of a drafter's forward pass, in the same unit."""
        rows = self.rows or 1
        return (self.draft + self.draft_row * (rows - 1)) / self._plain

    @property
    def _plain(self) -> float:
        """The seconds of a pass without drafts."""
        rows = self.rows or 1
        return self._seconds(rows) + self.row * (rows - 1)

    def drafts_now(self) -> bool:
        """Returns whether the rows draft in this cycle: if the gain exceeds the cost of what the drafter reads first.

        The gain is estimated from recent drafts at the costs for the present rows. A cycle without drafts is counted.
        """
        if self.record is None:
            return True
        rows, (tokens, nodes, passes) = self.rows or 1, self.record.rates
        scored = (self.spread(rows) - self.spread(0)) / rows  # the cost of a node in each row
        gain = tokens - nodes * scored - passes * self.level
        reading = self.unread * self.read / self._plain * rows  # in tokens decoded without drafts meanwhile
        pays = reading < gain * self.left
        if not pays:
            self.record.skip()
        return pays

    @property
    def hopeless(self) -> bool:
        """True if a level costs as much as a token, so that it would not pay even if it were always accepted."""
        return self.level + self.score(2) >= 2

    def worth(self, chances: Sequence[float]) -> int:
        """Returns how many drafted nodes to score, given their chances of acceptance, the highest first; may be 0."""
        return _most(chances, lambda count: self.score(self.taken + count + 1))

    def counts(self, chances: Sequence[Sequence[float]]) -> list[int]:
        """Returns the number of drafted nodes of each row to score, by its nodes' chances, the highest first.

        A forward pass is as wide as the row with the most nodes, so rows that choose together all get the number that
        pays for their mean chances. If a pass takes only the time of its valid nodes, the nodes of all rows compete,
        and the most likely ones are scored, as many as pay (TETRIS, Wu et al. 2025).
        """
        if self.record is None:
            return [self.worth(row) for row in chances]
        if self.ragged:
            every = [(chance, row) for row, own in enumerate(chances) for chance in own]
            ranked = sorted(every, key=_chance, reverse=True)
            counts = [0] * len(chances)
            for _, row in ranked[: _most([chance for chance, _ in ranked], self.spread)]:
                counts[row] += 1
            return counts
        most = max(map(len, chances))
        means = [added(row[rank] for row in chances if rank < len(row)) / len(chances) for rank in range(most)]
        count = self.worth(means)
        return [min(count, len(row)) for row in chances]

    def further(self, counts: Sequence[int]) -> list[float]:
        """Returns the cost of one more node in each row, given their numbers of drafted nodes.

        If rows may differ in their nodes, they share equally the cost of one more node in each row that drafts.
        """
        if not self.ragged:
            return [self.score(count + 2) - self.score(count + 1) for count in counts]
        all_rows, drafted = sum(counts), sum(count > 0 for count in counts)
        return [(self.spread(all_rows + drafted) - self.spread(all_rows)) / len(counts)] * len(counts)

    def _seconds(self, nodes: int) -> float:
        """The seconds of a pass, interpolated linearly between timed sizes, or extrapolated from the last two."""
        if (known := self.known.get(nodes)) is None:
            known = self.known[nodes] = self._between(nodes)
        return known

    def _between(self, nodes: int) -> float:
        if len(self.passes) == 1:
            return self.passes[0][1] * nodes
        place = min(max(bisect_left(self.passes, (nodes,)), 1), len(self.passes) - 1)
        (less, low), (more, high) = self.passes[place - 1 : place + 1]
        return low + (high - low) * (nodes - less) / (more - less)


def _chance(ranked: tuple[float, int]) -> float:
    return ranked[0]


def _most(chances: Iterable[float], cost: Callable[[int], float]) -> int:
    """The number of leading chances whose sum exceeds their cost by the most; 0 if none pays."""
    expected, best, most = cost(0), 0, 0.0
    for count, chance in enumerate(chances, 1):
        expected += chance
        gain = expected - cost(count)
        if gain > most:
            best, most = count, gain
    return best


def added(values: Iterable[float]) -> float:
    """The sum of the values, added in order as native code does; Python's own sum may round differently."""
    total = 0.0
    for value in values:
        total += value
    return total


def rising(timed: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The non-decreasing times nearest to these in least squares (pool adjacent violators)."""
    pools: list[list[float]] = []
    for _, seconds in timed:
        pools.append([seconds])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    times = [fmean(pool) for pool in pools for _ in pool]
    return [(size, seconds) for (size, _), seconds in zip(timed, times, strict=True)]
