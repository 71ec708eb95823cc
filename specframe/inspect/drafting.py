"""Times of a drafter over batches of prompts that are admitted together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median

from specframe.decoding.clock import Clock


class DraftTimes:
    """Times of a drafter's forward pass, and the time that reading the prompts adds to the first one."""

    def __init__(self) -> None:
        self.passes: list[float] = []
        """Seconds of a pass after the first cycle, by batch; if there is only one cycle, of its own passes."""
        self.read: list[float] = []
        """Seconds that one prompt token adds to the first cycle, by batch."""
        self._tokens = 0
        self._first: tuple[float, int] | None = None

    def begin(self, tokens: int) -> None:
        """Begins a batch whose prompts have `tokens` tokens in total."""
        self._tokens, self._first = tokens, None

    def count(self, clock: Clock) -> None:
        """Records the clock's times after a cycle."""
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


def paired_medians(turns: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Returns the seconds of each size, in ascending order, from turns in which all sizes were timed.

    The value of a size is the median over turns of its ratio to the turn's mean, multiplied by the median of these
    means. A machine that is slow during some turns therefore changes no ratio. If no turn timed all sizes, the value is
    the plain median of the size's seconds.
    """
    sizes = sorted({size for turn in turns for size in turn})
    if not (whole := [turn for turn in turns if len(turn) == len(sizes)]):
        return {size: median(turn[size] for turn in turns if size in turn) for size in sizes}
    means = [geometric_mean(turn.values()) for turn in whole]
    unit = median(means)
    return {size: unit * median(turn[size] / mean for turn, mean in zip(whole, means, strict=True)) for size in sizes}
