"""Speed, side by side: contestants take turns in one process, and ratios are taken turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from specframe.decoding.baseline import TextDivergence, find_divergences, generate_with_transformers
from specframe.decoding.clock import Clock
from specframe.decoding.pipeline import Pipeline, Prompt
from specframe.decoding.stats import Acceptance
from specframe.kernel.interfaces import text_of

Contestant = Callable[[], int]
"""Decodes the whole workload once and returns how many tokens it gave."""


@dataclass(frozen=True)
class Spread:
    """A figure's median over turns, with its extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values, at least one."""
        return cls(median(values), min(values), max(values))


def race(contestants: dict[str, Contestant], repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each contestant in each turn; who starts rotates from turn to turn.

    One unrecorded turn warms everything up.
    """
    names = list(contestants)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            start = perf_counter()
            tokens = contestants[name]()
            if turn:
                rates[name].append(tokens / (perf_counter() - start))
    return rates


def ratio(rates: dict[str, list[float]], above: str, below: str) -> Spread:
    """How many times faster one contestant is than another, turn by turn."""
    return Spread.of([a / b for a, b in zip(rates[above], rates[below], strict=True)])


@dataclass
class Figures:
    """What a measured run found."""

    acceptance: Acceptance
    tokens_per_second: Spread
    speedup: Spread
    """Against plain autoregressive decoding of the same target by this package."""
    speedup_hf: Spread | None
    """Against `generate` of transformers; None for targets that are no transformers model."""
    plain_vs_hf: Spread | None
    """Our plain decoding against `generate`: the honesty of our baseline."""
    clock: Clock
    identical: bool | None
    """Greedy output equals that of `generate`, ties aside; None when sampling."""
    divergences: list[TextDivergence] = field(default_factory=list)


def measure(pipeline: Pipeline, prompts: Sequence[Prompt], repeats: int) -> Figures:
    """Decodes the prompts with each contestant, `repeats` turns each after a warm-up, and compares."""
    rows = [pipeline.encode(prompt) for prompt in prompts]
    plain = pipeline.plain()
    model: Any = text_of(pipeline.parts.target).model
    ends = frozenset() if pipeline.sampling.ignore_eos else pipeline.ends
    clocks, acceptance = list[Clock](), Acceptance()
    mine: list[list[int]] = []
    theirs: list[list[int]] = []

    def ours() -> int:
        nonlocal acceptance
        result = pipeline.generate(rows)
        clocks.append(result.clock)
        acceptance, mine[:] = result.acceptance, result.tokens
        return sum(map(len, mine))

    def autoregressive() -> int:
        return sum(map(len, plain.generate(rows).tokens))

    def transformers() -> int:
        theirs.clear()
        for start in range(0, len(rows), pipeline.run.batch):
            chunk = rows[start : start + pipeline.run.batch]
            theirs.extend(generate_with_transformers(model, chunk, pipeline.sampling, ends))
        return sum(map(len, theirs))

    contestants: dict[str, Contestant] = {"ours": ours, "plain": autoregressive}
    if model is not None:
        contestants["transformers"] = transformers
    rates = race(contestants, repeats)
    clock = Clock()
    for later in clocks[1:]:  # the first turn warmed up
        clock.add(later)
    greedy = model is not None and pipeline.sampling.temperature == 0
    divergences = find_divergences(model, rows, mine, theirs) if greedy else []
    return Figures(
        acceptance=acceptance,
        tokens_per_second=Spread.of(rates["ours"]),
        speedup=ratio(rates, "ours", "plain"),
        speedup_hf=ratio(rates, "ours", "transformers") if model is not None else None,
        plain_vs_hf=ratio(rates, "plain", "transformers") if model is not None else None,
        clock=clock,
        identical=all(d.tie for d in divergences) if greedy else None,
        divergences=divergences,
    )
