"""Enumeration of one branch at a time in plain Python, for code that is not batched, such as foreign code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from specframe import InputError
from specframe.plugin import Enumeration, EnumerationProgress

MOST_CHOICES = 256
"""Number of choices in a branch above which it is considered endless."""
SHOWN_SECONDS = 0.2
"""Seconds between progress reports; the first branch is always reported."""

Outcome = tuple[int, ...]


@dataclass
class _Fork:
    """A choice on the current branch: the remaining options, the current one first."""

    total: int
    options: list[tuple[int, float]]


@dataclass
class BranchReplay:
    """The choices of one branch at a time, replayed depth first; foreign code only uses `choose`."""

    cut: float = 1e-13
    tolerance: float = 1e-6
    lost: list[float] = field(default_factory=list)
    weight: float = 1.0
    _path: list[_Fork] = field(default_factory=list)
    _position: int = 0

    def begin(self) -> None:
        """Starts the next branch."""
        self._position, self.weight = 0, 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """Returns one option, forking over all of them. The weights must form a law."""
        total = math.fsum(weights)
        if not abs(total - 1) <= self.tolerance or min(weights) < -self.tolerance:
            raise InputError(f"a choice among weights {list(weights)} that sum to {total!r} instead of 1")
        options = [(i, w / total) for i, w in enumerate(weights) if w > self.cut]
        if len(options) == 1:
            return options[0][0]
        if self._position == len(self._path):
            if self._position == MOST_CHOICES:
                raise InputError(
                    f"one branch drew {MOST_CHOICES} times: a loop that draws until something happens has no end to "
                    "enumerate; write a wrapper that draws once from what the loop amounts to, by torch.multinomial"
                )
            mass = math.fsum(w for _, w in options)
            self.lost.append(self.weight * (1 - mass) if len(options) < len(weights) and mass < 1 else 0.0)
            self._path.append(_Fork(len(options), options))
        fork = self._path[self._position]
        if fork.total != len(options):
            raise InputError(
                f"replaying, a choice had {len(options)} options instead of {fork.total}: the code has "
                "randomness or state of its own"
            )
        self._position += 1
        option, weight = fork.options[0]
        self.weight *= weight
        return option

    def end(self) -> bool:
        """Ends the branch; returns whether there is another one."""
        if self._position != len(self._path):
            raise InputError("replaying, the run made fewer choices than before: it has state of its own")
        while self._path:
            self._path[-1].options.pop(0)
            if self._path[-1].options:
                return True
            self._path.pop()
        return False


def replay_outcomes(
    program: Callable[[BranchReplay], Outcome],
    *,
    replay: BranchReplay | None = None,
    budget: int = 1_000_000,
    progress: Callable[[EnumerationProgress], None] | None = None,
) -> Enumeration:
    """Returns the law of the output of `program`, one branch at a time, depth first; at most `budget` branches.

    `replay` is the source of choices, for code that needs it before the enumeration starts.
    """
    start = due = perf_counter()
    replay = replay or BranchReplay()
    weights: dict[Outcome, list[float]] = {}
    branches, more, interrupted = 0, True, False
    mass = 0.0
    try:
        while more and branches < budget:
            replay.begin()
            outcome = program(replay)
            weights.setdefault(outcome, []).append(replay.weight)
            mass += replay.weight
            branches += 1
            more = replay.end()
            if progress is not None and perf_counter() >= due:
                progress(EnumerationProgress(branches, mass, perf_counter() - start))
                due = perf_counter() + SHOWN_SECONDS
    except KeyboardInterrupt:
        interrupted = True
    law = {outcome: math.fsum(parts) for outcome, parts in weights.items()}
    total, lost = math.fsum(law.values()), math.fsum(replay.lost)
    exhausted = not more and not interrupted
    if exhausted and abs(total + lost - 1) > 1e-12:
        raise InputError(
            f"all branches were run, but their probabilities add up to {total + lost!r} instead of 1: a "
            "replay met other distributions than the first run did"
        )
    return Enumeration(
        law=law,
        branches=branches,
        mass=total,
        cut=lost,
        exhausted=exhausted,
        interrupted=interrupted,
        rows=1,
        seconds=perf_counter() - start,
    )
