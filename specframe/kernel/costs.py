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
"""Rows' drafts that are assumed before any are decoded, their accepted tokens, nodes, and passes of the drafter.

Two nodes of three are accepted: nodes are scored where they are likely.
"""
WINDOW = 1024
"""Rows' drafts that are remembered."""
PATIENCE, LONGEST = 256, 4096
"""Cycles without drafts after which the assumption is made once more; twice as many each time, up to the second."""


class DraftRecord:
    """Accepted tokens and costs of the recent drafts of rows that choose together, assumed at first."""

    def __init__(self) -> None:
        self._sums, self._skipped, self._patience = PRIOR, 0, PATIENCE

    @property
    def rates(self) -> tuple[float, float, float]:
        """Accepted tokens, nodes and passes of the drafter of a row's draft."""
        drafts, accepted, nodes, passes = self._sums
        return accepted / drafts, nodes / drafts, passes / drafts

    def add(self, rows: int, accepted: int, nodes: int, passes: int) -> None:
        """Counts the drafts of `rows` rows, with the nodes and accepted tokens of all, made in so many passes."""
        shrink = min(1.0, WINDOW / (self._sums[0] + rows))
        new = (rows, accepted, nodes, passes * rows)
        drafts, accepted_sum, nodes_sum, passes_sum = (
            shrink * (old + more) for old, more in zip(self._sums, new, strict=True)
        )
        self._sums = drafts, accepted_sum, nodes_sum, passes_sum

    def skip(self) -> None:
        """Counts a cycle without drafts; what did not pay is tried again after many."""
        self._skipped += 1
        if self._skipped == self._patience:
            self._sums, self._skipped, self._patience = PRIOR, 0, min(2 * self._patience, LONGEST)


@dataclass(frozen=True)
class Costs:
    """The times of forward passes, from which a tree gets as many nodes and levels as pay.

    A node pays if its expected tokens exceed those that decoding without drafts would give in the time of scoring it. A
    machine that scores sixteen nodes as fast as one gets drafts of sixteen; where the cost grows with every node, a
    draft has few. The distribution of the output does not depend on it.
    """

    passes: tuple[tuple[int, float], ...]
    """(nodes, seconds) of the target's forward passes over one row, ascending, from one node on."""
    draft: float = 0.0
    """The seconds of a drafter's forward pass over one row."""
    draft_row: float = 0.0
    """The seconds that it takes longer for each further row."""
    row: float = 0.0
    """The seconds that the target's pass takes longer for each further row, in addition to its node."""
    row_drafted: float = 0.0
    """The seconds that it takes longer again for each of these rows that has a draft, in addition to its nodes."""
    read: float = 0.0
    """The seconds in which a drafter reads a token that was committed while it was not asked."""
    rows: int | None = None
    """Number of rows decoded together; None: those that a session has at the time, one where it is not known."""
    context: int = 0
    """Number of committed tokens after which the passes were timed."""
    longer: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()
    """(tokens, passes) after more committed tokens, ascending."""
    taken: int = 0
    """Number of drafted nodes that are scored anyway, before any that is asked for."""
    record: DraftRecord | None = field(default=None, compare=False)
    """Record shared by rows that choose together when to draft nothing; no row's text depends on its drafts."""
    apart: bool = False
    """True if rows that choose together may differ in their nodes: a pass takes the time of the valid ones alone."""

    unread: int = field(default=0, compare=False)
    """Tokens of all rows that a drafter would read before it drafts."""
    left: int = field(default=1, compare=False)
    """Tokens that all rows may still be given."""

    known: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds by nodes, of these passes, once they were asked for."""
    lengths: dict[int, Costs] = field(default_factory=dict, compare=False, repr=False)
    """The costs after more committed tokens, once they were asked for."""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.passes]
        if not sizes or sizes[0] != 1 or sizes != sorted(set(sizes)):
            raise InputError("costs need the seconds of a forward pass over 1 node, and over more in ascending order")
        if min(seconds for _, seconds in self.passes) <= 0 or self.draft < 0:
            raise InputError("costs are seconds, and a forward pass takes more than none")

    @classmethod
    def of(cls, seconds: Mapping[int, float], draft: float = 0.0) -> Costs:
        """The costs as they were timed, by the number of nodes; more nodes never take less."""
        return cls(tuple(rising(sorted(seconds.items()))), draft)

    def as_data(self) -> dict[str, Any]:
        """The times as plain data, without what was worked out from them."""
        names = ("passes", "draft", "draft_row", "row", "row_drafted", "read", "rows", "context", "longer", "taken")
        return {name: getattr(self, name) for name in names}

    def after(self, tokens: int) -> Costs:
        """Returns the costs after that number of committed tokens, on the line through the timed numbers next to it.

        Numbers whose first four binary digits are equal share the costs of the smallest, and all beyond the largest
        that was timed have its costs.
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

    def beyond(self, nodes: int) -> Costs:
        """The same costs for nodes added to this number of drafted nodes that are scored anyway."""
        return replace(self, taken=self.taken + nodes, lengths={})

    def together(
        self, lengths: Sequence[int], record: DraftRecord, apart: bool = False, unread: int = 0, left: int = 1
    ) -> Costs:
        """The same costs for rows of so many tokens, which choose together if there are several.

        Where the number of rows is fixed, a row chooses by itself, and by its length only if it is alone.
        """
        if self.rows is not None:
            return self.after(lengths[0]) if self.rows == 1 else self
        costs = self.after(max(lengths))
        if len(lengths) > 1:
            return replace(costs, rows=len(lengths), record=record, apart=apart, unread=unread, left=left)
        return costs.alone

    @cached_property
    def alone(self) -> Costs:
        """The same costs for one row."""
        return replace(self, rows=1, record=None, apart=False)

    def score(self, nodes: int) -> float:
        """Returns the cost of scoring `nodes` nodes of every row, the root included.

        The unit is the time in which decoding without drafts gives a row one token.
        """
        rows = self.rows or 1
        drafted = self.row_drafted * (rows - 1) if nodes > 1 else 0.0
        return (self._seconds(nodes * rows) + self.row * (rows - 1) + drafted) / self._plain

    def spread(self, nodes: int) -> float:
        """Returns the cost, for all rows, of scoring `nodes` nodes of any rows beyond those that are scored anyway."""
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
        """Returns whether the rows draft in this cycle: where that repays what the drafter reads for it.

        What drafts bring is taken from the recent ones, at the costs for the present rows. A cycle without is counted.
        """
        if self.record is None:
            return True
        rows, (tokens, nodes, passes) = self.rows or 1, self.record.rates
        scored = (self.spread(rows) - self.spread(0)) / rows  # the cost of a node in each row
        gain = tokens - nodes * scored - passes * self.level
        pays = self.unread * self.read / self._plain * rows < gain * self.left
        if not pays:
            self.record.skip()
        return pays

    @property
    def hopeless(self) -> bool:
        """True where a level costs as much as a token: then it would not pay if it were sure to be accepted."""
        return self.level + self.score(2) >= 2

    def worth(self, chances: Sequence[float]) -> int:
        """Returns how many drafted nodes to score, given their chances of acceptance, the highest first; may be 0."""
        return _most(chances, lambda count: self.score(self.taken + count + 1))

    def counts(self, chances: Sequence[Sequence[float]]) -> list[int]:
        """Returns the number of drafted nodes of each row to score, by its nodes' chances, the highest first.

        A forward pass is as wide as the row with most nodes, so rows that choose together take as many as pay for their
        mean. Where it takes the time of valid nodes alone, the nodes of all rows compete for the number that pays, and
        the most likely ones are scored (TETRIS, Wu et al. 2025).
        """
        if self.record is None:
            return [self.worth(row) for row in chances]
        if self.apart:
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
        """Returns the cost of a node more in each row, given their numbers of drafted nodes.

        Rows that differ in their nodes share that of one in each row that has some.
        """
        if not self.apart:
            return [self.score(count + 2) - self.score(count + 1) for count in counts]
        all_rows, drafted = sum(counts), sum(count > 0 for count in counts)
        return [(self.spread(all_rows + drafted) - self.spread(all_rows)) / len(counts)] * len(counts)

    def _seconds(self, nodes: int) -> float:
        """The seconds of a pass, on the line through the timed sizes next to its nodes, or through the last two."""
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
    """The number of the first chances whose sum is farthest above what they cost; 0 where none pays."""
    expected, best, most = cost(0), 0, 0.0
    for count, chance in enumerate(chances, 1):
        expected += chance
        gain = expected - cost(count)
        if gain > most:
            best, most = count, gain
    return best


def added(values: Iterable[float]) -> float:
    """The values added up one after the other, as native code does it; Python's own sum may round otherwise."""
    total = 0.0
    for value in values:
        total += value
    return total


def rising(timed: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The times that never fall with the size and lie nearest to these (pool adjacent violators)."""
    pools: list[list[float]] = []
    for _, seconds in timed:
        pools.append([seconds])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    times = [fmean(pool) for pool in pools for _ in pool]
    return [(size, seconds) for (size, _), seconds in zip(timed, times, strict=True)]
