"""Compares a composition, plain decoding and `generate` in one process, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch

from specframe.bench.contest.generation import Generate
from specframe.bench.contest.settings import take_turns
from specframe.bench.contest.timing import Timed, settled_objects, time_decoding
from specframe.decoding.baseline import TextDivergence, find_divergences
from specframe.decoding.clock import Clock
from specframe.decoding.pipeline import Pipeline, Prompt, Result
from specframe.decoding.settings import SamplingSettings
from specframe.decoding.stats import Acceptance
from specframe.kernel.contestant import Contestant, Outcome
from specframe.kernel.interfaces import Target, text_of
from specframe.sampling.grammar import grammar_of

OURS, PLAIN, TRANSFORMERS = "ours", "plain", Generate.name


@dataclass(frozen=True)
class Spread:
    """A figure's median over turns, with its extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one or more values."""
        return cls(median(values), min(values), max(values))


class Composed:
    """A prepared composition as a contestant; `results` holds its decodings so far."""

    def __init__(self, name: str, pipeline: Pipeline) -> None:
        self.name = name
        self.lossless: bool | None = pipeline.lossless
        self.results: list[Result] = []
        self._pipeline = pipeline

    def prepare(self, target: Target, sampling: SamplingSettings, batch: int) -> None:
        """Does nothing: the pipeline is bound to its target."""

    def decode(self, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
        """Continues the prompts, `run.batch` at a time."""
        arrivals: list[list[float]] = [[] for _ in rows]

        def arrive(row: int, tokens: list[int]) -> None:
            arrivals[row] += [perf_counter()] * len(tokens)

        result = self._pipeline.generate(rows, seed=seed, listener=arrive)
        self.results.append(result)
        return Outcome(result.tokens, arrivals)


def race(
    contestants: Sequence[Contestant], rows: Sequence[Sequence[int]], repeats: int, seed: int, device: torch.device
) -> dict[str, list[Timed]]:
    """The decodings of each contestant by name, one per turn, in the bench's order of turns.

    An unrecorded warm-up turn comes first.
    """
    named = {contestant.name: contestant for contestant in contestants}
    found: dict[str, list[Timed]] = {name: [] for name in named}
    with settled_objects():
        for turn in range(repeats + 1):
            for name in take_turns(list(named), turn, seed):
                timed = time_decoding(named[name], rows, seed, device)
                if turn:
                    found[name].append(timed)
    return found


def ratio(rates: Mapping[str, Sequence[float]], contestant: str, baseline: str) -> Spread:
    """Returns how many times faster one contestant is than another, turn by turn."""
    return Spread.of([a / b for a, b in zip(rates[contestant], rates[baseline], strict=True)])


@dataclass
class Figures:
    """The figures of a measured run."""

    acceptance: Acceptance
    tokens_per_second: Spread
    speedup: Spread
    """Speedup over plain autoregressive decoding of the same target by this package."""
    speedup_hf: Spread | None
    """Speedup over transformers' `generate`; None for targets without a transformers model."""
    plain_vs_hf: Spread | None
    """Speedup of this package's plain decoding over `generate`, a check of the baseline."""
    clock: Clock
    identical: bool | None
    """Greedy output equals that of `generate`, ties aside; None when sampling."""
    divergences: list[TextDivergence] = field(default_factory=list)


def measure(pipeline: Pipeline, prompts: Sequence[Prompt], repeats: int) -> Figures:
    """Decodes the prompts with each contestant, `repeats` turns each after a warm-up, and compares."""
    rows = [pipeline.encode(prompt) for prompt in prompts]
    target = pipeline.parts.target
    model: Any = text_of(target).model
    ours = Composed(OURS, pipeline)
    contestants: list[Contestant] = [ours, Composed(PLAIN, pipeline.plain())]
    if model is not None:
        theirs = Generate()
        theirs.prepare(target, pipeline.sampling, pipeline.run.batch)
        contestants.append(theirs)
    device = text_of(target).device or torch.device("cpu")
    turns = race(contestants, rows, repeats, pipeline.run.seed, device)
    rates = {name: [sum(map(len, t.outcome.tokens)) / t.seconds for t in timed] for name, timed in turns.items()}
    clock = Clock()
    for result in ours.results[1:]:  # the first turn warmed up
        clock.add(result.clock)
    greedy = model is not None and pipeline.sampling.temperature == 0
    last = {name: timed[-1].outcome.tokens for name, timed in turns.items()}
    divergences: list[TextDivergence] = []
    if greedy:
        grammar = grammar_of(target, pipeline.sampling.grammar)
        divergences = find_divergences(model, rows, last[OURS], last[TRANSFORMERS], pipeline.sampling, grammar)
    return Figures(
        acceptance=ours.results[-1].acceptance,
        tokens_per_second=Spread.of(rates[OURS]),
        speedup=ratio(rates, OURS, PLAIN),
        speedup_hf=ratio(rates, OURS, TRANSFORMERS) if model is not None else None,
        plain_vs_hf=ratio(rates, PLAIN, TRANSFORMERS) if model is not None else None,
        clock=clock,
        identical=all(d.tie for d in divergences) if greedy else None,
        divergences=divergences,
    )
