"""Where the time of a session goes."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter
from types import TracebackType


class Clock:
    """Seconds and calls by name: the loop's phases, and inside them the forwards of the models.

    Phases are prefill, draft, score, verify and commit; forwards are `target` and `drafter`, booked for
    cycles alone, not for the prefill. `cycles` is all the time between prefill and end.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.running: str | None = None
        """The innermost phase that runs now."""

    def phase(self, name: str) -> Span:
        """A context manager that adds the time spent inside to `name`."""
        return Span(self, name)

    @property
    def cycles(self) -> float:
        """Seconds spent in cycles, everything included but the prefill."""
        return self.seconds["session"] - self.seconds["prefill"]

    @property
    def overhead(self) -> float:
        """What cycles spend outside the forwards of target and drafter, as a share of the forwards."""
        forwards = self.seconds["target"] + self.seconds["drafter"]
        return self.cycles / forwards - 1 if forwards else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Each phase's share of the time of the cycles; `other` is what no phase claims."""
        if self.cycles <= 0:
            return {}
        shares = {name: self.seconds[name] / self.cycles for name in ("draft", "score", "verify", "commit")}
        return {**shares, "other": 1 - sum(shares.values())}

    def add(self, other: Clock) -> None:
        """Adds another clock's times to this one's."""
        for name, value in other.seconds.items():
            self.seconds[name] += value
        for name, calls in other.calls.items():
            self.calls[name] += calls


class Span:
    """One timed stretch of a clock's phase; cheap enough to wrap every forward."""

    __slots__ = ("clock", "name", "outer", "start")

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock = clock
        self.name = name

    def __enter__(self) -> Span:
        """Starts the stretch."""
        self.outer, self.clock.running = self.clock.running, self.name
        self.start = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the stretch and books it."""
        clock = self.clock
        clock.seconds[self.name] += perf_counter() - self.start
        clock.calls[self.name] += 1
        clock.running = self.outer
