"""What forward passes cost on a machine, and how much of a draft is worth its cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from specframe.kernel.errors import InputError

REST = 16
"""For so many cycles a batch drafts nothing after one in which nothing paid."""


class Pause:
    """How many cycles a session's rows still go without drafts, since none would pay."""

    def __init__(self) -> None:
        self._left = 0

    def begin(self) -> None:
        """Nothing paid in this cycle: the next ones draft nothing."""
        self._left = REST

    def over(self) -> bool:
        """Whether this cycle drafts; one that does not is counted."""
        self._left -= self._left > 0
        return self._left == 0


@dataclass(frozen=True)
class Costs:
    """The times of forward passes, by which a tree has as many nodes and levels as pay.

    What pays brings more tokens, as far as they can be expected, than decoding without drafts would give in the time
    that it takes. A machine that scores sixteen nodes as fast as one gets drafts of sixteen; where every node takes its
    time a draft has few. The distribution of the output does not depend on it.
    """

    passes: tuple[tuple[int, float], ...]
    """(nodes, seconds) of the target's forward passes over one row, ascending, from one node on."""
    draft: float = 0.0
    """The seconds of a drafter's forward pass."""
    rows: int | None = None
    """How many rows are decoded together; None: those that a session has at the time, one where it is not known."""
    taken: int = 0
    """How many drafted nodes are scored anyway, before any that is asked for."""
    pause: Pause | None = field(default=None, compare=False)
    """Where rows choose together, since a row's text does not depend on what it drafts: when they draft nothing."""

    known: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds by nodes, of these passes, once they were asked for."""

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

    def beyond(self, nodes: int) -> Costs:
        """The same for what joins so many drafted nodes that are scored anyway."""
        return replace(self, taken=self.taken + nodes)

    def together(self, rows: int, pause: Pause) -> Costs:
        """The same for so many rows, which choose together if they are several, unless their number is fixed."""
        if self.rows is not None:
            return self
        return replace(self, rows=rows, pause=pause if rows > 1 else None)

    def score(self, nodes: int) -> float:
        """What scoring so many nodes of every row takes, the root included.

        The unit is the time in which decoding without drafts gives a row one token.
        """
        rows = self.rows or 1
        return self._seconds(nodes * rows) / self._seconds(rows)

    @property
    def level(self) -> float:
        """What a drafter's forward pass takes, in the same unit."""
        return self.draft / self._seconds(self.rows or 1)

    def worth(self, chances: Sequence[float]) -> int:
        """How many drafted nodes to score, by each one's chance of being accepted, the highest first; it may be 0."""
        expected, best, most = self.score(self.taken + 1), 0, 0.0
        for count, chance in enumerate(chances, 1):
            expected += chance
            gain = expected - self.score(self.taken + count + 1)
            if gain > most:
                best, most = count, gain
        return best

    def counts(self, chances: Sequence[Sequence[float]]) -> list[int]:
        """How many drafted nodes of each row to score, by its nodes' chances, the highest first.

        A forward pass has as many nodes of every row as of the one with most, so rows that choose together take as many
        as pay for the mean of them.
        """
        if self.pause is None:
            return [self.worth(row) for row in chances]
        most = max(map(len, chances))
        means = [sum(row[rank] for row in chances if rank < len(row)) / len(chances) for rank in range(most)]
        count = self.worth(means)
        return [min(count, len(row)) for row in chances]

    def _seconds(self, nodes: int) -> float:
        """A pass over so many nodes: on the line through the timed sizes next to it, or through the last two."""
        if (known := self.known.get(nodes)) is None:
            known = self.known[nodes] = self._between(nodes)
        return known

    def _between(self, nodes: int) -> float:
        if len(self.passes) == 1:
            return self.passes[0][1] * nodes
        place = min(max(bisect_left(self.passes, (nodes,)), 1), len(self.passes) - 1)
        (less, low), (more, high) = self.passes[place - 1 : place + 1]
        return low + (high - low) * (nodes - less) / (more - less)


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
