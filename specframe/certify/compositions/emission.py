"""The enumerated law of the real loop's output, compared with that of plain autoregressive decoding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from specframe.certify.compositions.branches import Forks
from specframe.certify.compositions.enumeration import (
    Enumeration,
    EnumerationProgress,
    ForkedStreams,
    Outcome,
    enumerate_outcomes,
)
from specframe.decoding.requests import Request, as_prompts, pad
from specframe.decoding.session import Parts, Session
from specframe.kernel.sampling import Streams
from specframe.kernel.types import Cycle
from specframe.sampling.laws import History, Sampling

END = -1
"""Padding of an outcome after its last token."""


@dataclass(frozen=True)
class Emission:
    """One case to certify: a composition, its sampling, a prompt, and the number of compared tokens."""

    name: str
    parts: Callable[[], Parts]
    """Fresh parts, the drafter bound; called for every batch of branches, so that nothing is carried over."""
    sampling: Sampling
    length: int
    """Number of first tokens whose joint law is compared; more than one cycle emits, so that cycles are tested, too."""
    prompt: tuple[int, ...] = (0,)
    ends: frozenset[int] = frozenset()
    """End-of-sequence tokens: nothing follows them."""
    streams: Callable[[Forks], Streams] = ForkedStreams
    """The session's random streams over the forks; others than these in a negative control."""
    watch: Callable[[Cycle], None] | None = None
    """Callback that gets every cycle of the branches, admissions included, without other rows."""
    sessions: int = 0
    """Number of sessions of two rows each that the same parts have decoded before."""

    def program(self, random: Forks, rows: int) -> torch.Tensor:
        """The real session on `rows` branches: [rows, length] int64, END after the last token."""
        parts = self.parts()
        request = Request(tokens=self.prompt, sampling=self.sampling, max_new_tokens=self.length, ends=self.ends)
        room = len(self.prompt) + self.length + parts.nodes
        for _ in range(self.sessions):  # one row after the other
            Session(parts, 1, room).run([request] * 2)
        session = Session(parts, rows, room, random=self.streams(random), watch=self.watch)
        entries = session.run([request] * rows)
        return torch.tensor([e.tokens + [END] * (self.length - len(e.tokens)) for e in entries])

    def target_law(self) -> dict[Outcome, float]:
        """The law of plain autoregressive decoding: the product of the target's conditional laws."""
        parts = self.parts()
        law: dict[Outcome, float] = {}
        prefixes: dict[Outcome, float] = {(): 1.0}
        for step in range(self.length):
            rows = [[*self.prompt, *prefix] for prefix in prefixes]
            parts.target.open(len(rows), len(rows[0]))
            tree, scores = parts.target.admit(as_prompts(rows))
            sampling = self.sampling.following(History(*pad(rows))) if self.sampling.processors else self.sampling
            conditional = sampling.law(scores.logits, tree)[:, 0].double()  # [R, V]
            conditional = conditional / conditional.sum(-1, keepdim=True)
            longer: dict[Outcome, float] = {}
            for (prefix, weight), probabilities in zip(prefixes.items(), conditional.tolist(), strict=True):
                for token, probability in enumerate(probabilities):
                    if probability > 0:
                        done = token in self.ends or step + 1 == self.length
                        tail = (END,) * (self.length - step - 1) if done else ()
                        (law if done else longer)[(*prefix, token, *tail)] = weight * probability
            if not longer:
                break
            prefixes = longer
        return law

    def compare(
        self,
        *,
        budget: int = 1_000_000,
        rows: int = 4096,
        alone: int | None = None,
        progress: Callable[[EnumerationProgress], None] | None = None,
        early: bool = False,
    ) -> Comparison:
        """The emitted law against the target's. Options as in `enumerate_outcomes`.

        `early` ends the enumeration where an outcome has too much probability.
        """
        with torch.inference_mode():
            wanted = self.target_law()
            emitted = enumerate_outcomes(
                self.program,
                budget=budget,
                rows=rows,
                alone=alone,
                progress=progress,
                wanted=wanted if early else None,
            )
            return compare(wanted, emitted, first=2)  # no draft has a part in the very first token


@dataclass(frozen=True)
class Comparison:
    """The distance of the emitted law from the target's."""

    tv: float
    """Total variation; a lower bound, over the visited part only, where the enumeration is not exhausted."""
    first_tv: float
    """Total variation up to the first token that a draft has a part in. It can be 0 while `tv` is not."""
    worst: Outcome
    """The sequence whose probability is farthest off, with the expected and the actual one."""
    wanted: float
    got: float
    prefix: Outcome
    """The shortest prefix whose probability is off (the farthest off of that length); empty if none is."""
    enumeration: Enumeration

    @property
    def bound(self) -> float:
        """The most the total variation can be, the mass that was cut or never looked at included."""
        return min(1.0, self.tv + self.enumeration.missing + self.enumeration.cut)


def compare(wanted: dict[Outcome, float], emitted: Enumeration, *, first: int = 1, noise: float = 1e-9) -> Comparison:
    """Compares a law with an enumerated one; differences up to `noise` are not called differing.

    `first` is how many tokens `first_tv` looks at.
    """
    got = emitted.law
    everything = list(dict.fromkeys([*wanted, *got]))
    worst = max(everything, key=lambda o: _off(wanted, got, o, emitted.exhausted))
    prefix: Outcome = ()
    for length in range(1, len(worst) + 1):
        short_wanted, short_got = marginal(wanted, length), marginal(got, length)
        keys = list(dict.fromkeys([*short_wanted, *short_got]))
        off = {key: _off(short_wanted, short_got, key, emitted.exhausted) for key in keys}
        farthest = max(keys, key=off.__getitem__)
        if off[farthest] > noise:
            prefix = farthest
            break
    return Comparison(
        tv=distance(wanted, got),
        first_tv=distance(marginal(wanted, first), marginal(got, first)),
        worst=worst,
        wanted=wanted.get(worst, 0.0),
        got=got.get(worst, 0.0),
        prefix=prefix,
        enumeration=emitted,
    )


def distance(wanted: dict[Outcome, float], got: dict[Outcome, float]) -> float:
    """The total variation distance; if `got` lacks mass, the least that completing it can give."""
    return math.fsum(max(0.0, mass - wanted.get(outcome, 0.0)) for outcome, mass in got.items())


def _off(wanted: dict[Outcome, float], got: dict[Outcome, float], outcome: Outcome, exhausted: bool) -> float:
    """Returns the error of one probability; unfinished enumerations can only be seen to give too much."""
    difference = got.get(outcome, 0.0) - wanted.get(outcome, 0.0)
    return abs(difference) if exhausted else max(0.0, difference)


def marginal(law: dict[Outcome, float], length: int) -> dict[Outcome, float]:
    """The distribution of the first tokens of an outcome."""
    parts: dict[Outcome, list[float]] = {}
    for outcome, mass in law.items():
        parts.setdefault(outcome[:length], []).append(mass)
    return {outcome: math.fsum(masses) for outcome, masses in parts.items()}
