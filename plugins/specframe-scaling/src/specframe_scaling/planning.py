"""The plan: the drafter and drafts with the most expected tokens per second under a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specframe import InputError
from specframe_scaling.laws import Logit, TauLaw
from specframe_scaling.points import Array, Results, Speed, name_of
from specframe_scaling.resampling import interval
from specframe_scaling.throughput import cycle_seconds

Size = tuple[int, int]


@dataclass(frozen=True)
class PlannedDrafter:
    """A drafter, its training and draft depth, and the values that the laws predict for it."""

    size: Size
    tokens: float
    batch: int
    depth: int
    tau: float
    tau_interval: tuple[float, float]
    speedup: float
    speedup_interval: tuple[float, float]
    outside: float
    """Factor between its tokens and the nearest measured number; 1 within their range."""


@dataclass(frozen=True)
class Planner:
    """The results, with the chosen law, and that of acceptance by depth."""

    results: Results
    law: TauLaw
    logit: Logit

    def depths(self, size: Size, tokens: float) -> Array:
        """Returns tau of drafts cut below each depth, [R, D]: the chosen law's, divided as the acceptances are."""
        place = np.array([tokens]), np.array([float(self.results.sizes()[size])])
        split = self.logit.depths(*place)[..., 0]
        if self.law is self.logit:
            return split
        shares = (split - 1) / (split[:, -1:] - 1)
        found: Array = 1 + shares * (self.law.tau(*place) - 1)
        return found

    def plan(self, size: Size, tokens: float, batch: int) -> PlannedDrafter:
        """Returns the best draft depth for a size and batch. Raises InputError if the batch was not timed."""
        speed = self.speed(size, batch)
        taus = self.depths(size, tokens)[:, : len(speed.nodes)]
        per_token = speed.plain_seconds  # without drafts, a row gets one token per pass
        cycles = [cycle_seconds(speed, depth, self.results.passes) for depth in range(1, taus.shape[1] + 1)]
        gains = [taus[:, level] * per_token / cycle for level, cycle in enumerate(cycles)]
        best = int(np.argmax([gain[0] for gain in gains]))
        tau, gain = taus[:, best], gains[best]
        low, high = self.results.tokens.min(), self.results.tokens.max()
        return PlannedDrafter(
            size=size,
            tokens=tokens,
            batch=batch,
            depth=best + 1,
            tau=float(tau[0]),
            tau_interval=interval(tau),
            speedup=float(gain[0]),
            speedup_interval=interval(gain),
            outside=max(1.0, tokens / high, low / tokens),
        )

    def speed(self, size: Size, batch: int) -> Speed:
        """Returns the times of a size and batch."""
        for speed in self.results.speeds:
            if (speed.layers, speed.width, speed.batch) == (*size, batch):
                return speed
        raise InputError(f"no cycles of {batch} rows were timed with {name_of(size)}")

    @property
    def batches(self) -> list[int]:
        """Returns the batches that were timed with every size."""
        sizes = self.results.sizes()
        timed = [{s.batch for s in self.results.speeds if (s.layers, s.width) == size} for size in sizes]
        return sorted(set.intersection(*timed)) if timed else []

    def best(self, tokens: Callable[[Size], float], batch: int) -> PlannedDrafter:
        """Returns the choice with the most tokens per second at a batch, given each size's training tokens."""
        choices = [self.plan(size, tokens(size), batch) for size in self.results.sizes()]
        return max(choices, key=lambda choice: choice.speedup)

    def within(self, seconds: float) -> Callable[[Size], float]:
        """Returns the number of tokens that each size is trained on in a given time.

        Raises InputError for a time in which no point of the sweep is trained.
        """
        least = min(self.results.points, key=lambda point: point.tokens / self.results.tokens_per_second(point.size))
        needed = least.tokens / self.results.tokens_per_second(least.size)
        if seconds < needed:
            raise InputError(
                f"a budget of {seconds:.0f} s is below one point: the smallest of the sweep, {least.tokens:,} tokens "
                f"with {name_of(least.size)}, takes {needed:.0f} s"
            )
        return lambda size: seconds * self.results.tokens_per_second(size)

    def last_gain(self, choice: PlannedDrafter) -> float | None:
        """Returns the batch above which a drafter gives no gain, interpolated between timed ones; None if all gain."""
        found = [(batch, self.plan(choice.size, choice.tokens, batch).speedup) for batch in self.batches]
        for (less, before), (more, after) in zip([(0, 2.0), *found], found, strict=False):
            if after <= 1:
                if less == 0:
                    return 0.0
                part = (before - 1) / (before - after)
                return float(2 ** (np.log2(less) + part * (np.log2(more) - np.log2(less))))
        return None
