"""What watching costs: the time that the bench itself adds to what it measures."""

from __future__ import annotations

from functools import cache
from time import perf_counter

from specframe.decoding.clock import Clock

TRIALS = 2000


@cache
def span_seconds() -> float:
    """Seconds that one timed stretch of a clock costs, two hooks' worth of calls included; measured once."""
    clock = Clock()
    start = perf_counter()
    for _ in range(TRIALS):
        with clock.phase("score"):
            pass
    return (perf_counter() - start) / TRIALS


@cache
def arrival_seconds() -> float:
    """Seconds that noting one arrival costs; measured once."""
    times: list[float] = []

    def note(row: int, tokens: list[int]) -> None:
        times.extend([perf_counter()] * len(tokens))

    tokens = [0, 0, 0, 0]
    start = perf_counter()
    for _ in range(TRIALS):
        note(0, tokens)
    return (perf_counter() - start) / TRIALS
