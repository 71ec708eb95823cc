"""A drafter's times in batches of prompts that join together."""

from __future__ import annotations

from specframe.decoding.clock import Clock


class DraftTimes:
    """The times of a drafter's pass, and of what reading the prompts adds to the first one."""

    def __init__(self) -> None:
        self.passes: list[float] = []
        """Seconds of a pass behind the first cycle, by batch; where there is one cycle alone, of its passes."""
        self.read: list[float] = []
        """Seconds that a token of the prompts adds to the first cycle, by batch."""
        self._tokens = 0
        self._first: tuple[float, int] | None = None

    def begin(self, tokens: int) -> None:
        """Begins a batch whose prompts have so many tokens."""
        self._tokens, self._first = tokens, None

    def count(self, clock: Clock) -> None:
        """Takes note of the clock's time after a cycle."""
        clock.settle()
        spent, calls = clock.seconds["drafter"], clock.calls["drafter"]
        if self._first is None:
            self._first = spent, calls
            self.passes.append(spent / max(calls, 1))
            self.read.append(0.0)
        elif calls > self._first[1]:
            first, before = self._first
            self.passes[-1] = (spent - first) / (calls - before)
            self.read[-1] = max(0.0, first - before * self.passes[-1]) / self._tokens
