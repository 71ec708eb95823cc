"""Exact law of real code: runs a program or session once for every random outcome, thousands of runs per batch.

A branch is the list of choices made at every fork. Because all parts of specframe are batch first, a
batch of B rows can follow B different scripts at once: each row replays its own script, then takes the
likeliest option at every further fork and queues the others as new scripts. `rows=1` enumerates the
same branches one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from specframe.certify.compositions.branches import BranchSource, Forks, HiddenState, Scripts

Program = Callable[[Forks, int], Tensor]
"""A run of `rows` independent rows under a random source; gives one outcome a row, int64 [rows, K]."""

Outcome = tuple[int, ...]

NOISE = 1e-9
"""A difference of two probabilities that is rounding."""
ENOUGH = 1024
"""Branches side by side after which a law that is known to be wrong need not be followed further."""
CONFIRMED = 64
"""Smallest number of branches run a second time, to check that the same choices have the same outcome."""


class EnumerationProgress(NamedTuple):
    """Progress of an enumeration."""

    branches: int
    """Number of branches run."""
    mass: float
    """Total probability of these branches."""
    seconds: float


@dataclass(frozen=True)
class Enumeration:
    """The law of a program's outcomes, with the probability mass that was cut or not visited."""

    law: dict[Outcome, float]
    """Probability of every outcome met; sums to `mass`."""
    branches: int
    mass: float
    """Probability of all branches run: 1 if everything was run and nothing was cut."""
    cut: float
    """Probability of the options that were cut because they weigh next to nothing."""
    exhausted: bool
    """True if every branch was run. If false, 1 - mass - cut of the probability was never visited."""
    interrupted: bool
    rows: int
    """Number of branches per call; 1 if rows cannot run in parallel."""
    seconds: float

    @property
    def missing(self) -> float:
        """The probability that was never looked at, budget or interrupt; 0 when exhausted."""
        return 0.0 if self.exhausted else max(0.0, 1.0 - self.mass - self.cut)

    @property
    def rate(self) -> float:
        """Branches a second."""
        return self.branches / max(self.seconds, 1e-9)

    def summary(self) -> str:
        """Summary of the coverage in one line."""
        if self.exhausted:
            return f"exhausted: {self.branches} branches, mass {self.mass:.15f}"
        why = "interrupted" if self.interrupted else "not exhausted"
        return f"{why}: {self.branches} branches, {100 * (self.mass + self.cut):.4g} % of the mass covered"


@dataclass
class _Sum:
    """A running sum that loses nothing to rounding (math.fsum over the parts that matter)."""

    parts: list[float] = field(default_factory=list)

    def add(self, values: list[float]) -> None:
        self.parts.extend(values)
        if len(self.parts) > 4096:
            total = math.fsum(self.parts)
            self.parts = [total, math.fsum([*self.parts, -total])]

    @property
    def total(self) -> float:
        return math.fsum(self.parts)


def enumerate_outcomes(
    program: Program,
    *,
    budget: int = 1_000_000,
    rows: int = 4096,
    alone: int | None = None,
    cut: float = 1e-13,
    tolerance: float = 1e-9,
    progress: Callable[[EnumerationProgress], None] | None = None,
    wanted: Mapping[Outcome, float] | None = None,
) -> Enumeration:
    """The law of the output of `program`, by running it once for every outcome of its random choices.

    budget: largest number of branches, the likeliest first. rows: branches per call. A component may make
    unused draws for a row, depending on the other rows; replaying a branch with other rows then fails, and the
    enumeration is repeated one branch at a time. This is slow, so that only `alone` branches are run (None: the
    budget); components should use a law with one option for unused draws.
    cut: options of this weight or less are not followed; their mass is counted in `cut`.
    tolerance: how far a law may be from summing to 1.
    wanted: a law that the outcomes should have; an outcome that has more probability ends the enumeration, where
    branches are run one at a time at once.
    Ctrl-C ends the enumeration early and returns what it has, marked `interrupted`.
    Raises UnnormalisedLaw for a law that is not one, and HiddenState when a branch replayed alone takes
    another course: the program has randomness or state apart from the random source.
    """
    run = _Run(program, budget, cut, tolerance, progress, wanted)
    try:
        return run.run(rows)
    except HiddenState:
        if rows == 1:
            raise
        return replace(run, budget=min(budget, alone or budget)).run(1, alone=True)


class _Wave(NamedTuple):
    """Branches that were run in one call."""

    scripts: Scripts
    """Their choices, to their very ends."""
    outcomes: Tensor  # [rows, K]


@dataclass(frozen=True)
class _Run:
    """The settings of an enumeration."""

    program: Program
    budget: int
    cut: float
    tolerance: float
    progress: Callable[[EnumerationProgress], None] | None
    wanted: Mapping[Outcome, float] | None = None

    def exceeds(self, law: Mapping[Outcome, _Sum]) -> bool:
        """Returns whether an outcome has more probability than it should."""
        wanted = self.wanted
        return wanted is not None and any(mass.total > wanted.get(one, 0.0) + NOISE for one, mass in law.items())

    def confirm(self, waves: list[_Wave], rows: int) -> None:
        """Runs the same branches once more: the same choices must lead to the same outcome.

        Waves whose outcomes are as wide are one batch: a session is the dearer part of a run, not its rows.
        """
        for width in {wave.outcomes.shape[1] for wave in waves}:
            alike = [wave for wave in waves if wave.outcomes.shape[1] == width]
            scripts, outcomes = Scripts.join([wave.scripts for wave in alike]), [wave.outcomes for wave in alike]
            for part, wanted in zip(scripts.pieces(rows), torch.cat(outcomes).split(rows), strict=True):
                again = Forks(part, cut=self.cut, tolerance=self.tolerance)
                if not torch.equal(self.program(again, len(part)), wanted) or len(again.finish()):
                    raise HiddenState(
                        "the same choices led to another outcome when a branch was run once more: the program has "
                        "randomness or state of its own"
                    )

    def run(self, rows: int, alone: bool = False) -> Enumeration:
        """The whole enumeration, `rows` branches at a time; `alone` confirms every one of them."""
        start = perf_counter()
        pending = [Scripts.beginning()]
        law: dict[Outcome, _Sum] = {}
        covered, lost = _Sum(), _Sum()
        unconfirmed: list[_Wave] = []
        branches, interrupted, stopped = 0, False, False
        try:
            while pending and branches < self.budget:
                scripts = _likeliest(pending, min(rows, self.budget - branches))
                forks = Forks(scripts, cut=self.cut, tolerance=self.tolerance)
                outcomes = self.program(forks, len(scripts))
                found = forks.finish()
                if alone or branches < CONFIRMED:
                    unconfirmed.append(_Wave(forks.whole(), outcomes))
                _collect(law, outcomes, forks.weight)
                covered.add(forks.weight.tolist())
                lost.add([forks.lost])
                branches += len(scripts)
                if len(found):
                    pending.append(found)
                if unconfirmed and (rows == 1 or branches >= CONFIRMED):
                    self.confirm(unconfirmed, rows)
                    unconfirmed.clear()
                if self.progress is not None:
                    self.progress(EnumerationProgress(branches, covered.total, perf_counter() - start))
                if (rows == 1 or branches >= ENOUGH) and self.exceeds(law):
                    stopped = True
                    break
            self.confirm(unconfirmed, rows)
        except KeyboardInterrupt:
            interrupted = True
        exhausted = not pending and not interrupted and not stopped
        if exhausted:
            _check_mass(covered.total + lost.total)
        return Enumeration(
            law={outcome: mass.total for outcome, mass in law.items()},
            branches=branches,
            mass=covered.total,
            cut=lost.total,
            exhausted=exhausted,
            interrupted=interrupted,
            rows=rows,
            seconds=perf_counter() - start,
        )


def _likeliest(pending: list[Scripts], count: int) -> Scripts:
    """Takes up to `count` of the pending scripts out, roughly the likeliest first."""
    taken: list[Scripts] = []
    while pending and count > 0:
        index = max(range(len(pending)), key=lambda i: pending[i].top)
        block = pending.pop(index)
        head, rest = block.split(count)
        taken.append(head)
        count -= len(head)
        if len(rest):
            pending.append(rest)
    return Scripts.join(taken)


def _collect(law: dict[Outcome, _Sum], outcomes: Tensor, weight: Tensor) -> None:
    """Adds the weights of a batch of branches to their outcomes."""
    distinct, which = outcomes.reshape(len(weight), -1).unique(dim=0, return_inverse=True)
    masses = which.bincount(weight, minlength=len(distinct))
    for outcome, mass in zip(distinct.tolist(), masses.tolist(), strict=True):
        law.setdefault(tuple(outcome), _Sum()).add([mass])


def _check_mass(total: float) -> None:
    if abs(total - 1.0) > 1e-12:
        raise HiddenState(
            f"all branches were run, but their probabilities add up to {total!r} instead of 1: a replay "
            "met other distributions than the first run did. The program has randomness or state of its own."
        )


class ForkedStreams:
    """The streams of a session whose rows are branches of an enumeration, in the order of their admission.

    They take the place of `SeededRandom`, so the real session runs on them unchanged. All streams fork the same run.
    """

    def __init__(self, forks: Forks) -> None:
        """Streams without rows; the first row to start is the first branch."""
        self._forks = forks
        self._started = 0
        # One source for the whole session: who holds it draws for the rows that are live then.
        self.live = forks.of_rows(torch.arange(0))
        self.draft = self.verify = self.position = BranchSource(self.live)

    def start(self, seeds: Sequence[int]) -> ForkedStreams:
        """The next branches as new rows; their seeds mean nothing here."""
        first, self._started = self._started, self._started + len(seeds)
        new = ForkedStreams(self._forks)
        new.live.rows = torch.arange(first, self._started)
        return new

    def join(self, new: ForkedStreams) -> None:
        """Puts the branches of new rows after these."""
        self.live.rows = torch.cat([self.live.rows, new.live.rows])

    def advance(self, count: Tensor, most: int) -> None:
        """A new cycle: nothing to do, every fork is fresh."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others have ended their branch."""
        self.live.rows = self.live.rows[rows.cpu()]
