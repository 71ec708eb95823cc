"""How many conversations side by side, with drafts or without: what this machine answers fastest by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from specframe.decoding.pipeline import Pipeline
from specframe.kernel.interfaces import Observer

SIZES = (8, 16, 32, 64)
"""Conversations side by side that are tried, as long as more of them are faster."""
WORTH = 1.05
"""More conversations take more memory, so they are to be faster by this factor."""
PROMPT = 32
"""The first so many tokens of a prompt are read in a trial."""
TOKENS = 12
"""New tokens of a trial's rows; the first comes with the prompt and is not timed."""

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Trial:
    """What one way of answering gave."""

    pipeline: Pipeline
    rate: float
    """Tokens per second, prompts not counted."""

    def __str__(self) -> str:
        drafts = "with the recipe's drafts" if self.pipeline.parts.nodes > 1 else "without drafts"
        return f"{self.pipeline.run.batch} conversations side by side, {drafts}: {self.rate:.0f} tokens/s in a trial"


def decoding_rate(pipeline: Pipeline, prompts: Prompts) -> float:
    """Tokens per second of decoding a few tokens behind each of the prompts, all side by side."""
    requests = pipeline.requests(prompts, replace(pipeline.sampling, max_new_tokens=TOKENS, ignore_eos=True, stop=[]))
    with pipeline.open(requests, slots=len(requests)) as session:
        entries = session.admit(requests)
        started = perf_counter()
        while session.live:
            session.step()
        seconds = perf_counter() - started
    return sum(len(entry.tokens) - 1 for entry in entries) / max(seconds, 1e-9)


def fastest(
    pipeline: Pipeline, prompts: Prompts, rate: Callable[[Pipeline, Prompts], float] = decoding_rate
) -> list[Trial]:
    """Trials of the ways to answer so many prompts, fastest first; the texts are the same in all of them.

    More and more conversations are tried until that pays no more. Drafts may be left out where the verifier draws by
    position, so that a text does not depend on them; what learns or remembers is not run for a trial, and is left out.
    """
    ways = [pipeline]
    if pipeline.parts.verifier.needs.by_position:
        learns = isinstance(pipeline.parts.drafter, Observer)
        ways = [pipeline.plain(), *([] if learns else [pipeline])]

    def attempt(way: Pipeline, size: int) -> Trial:
        sized = replace(way, run=replace(way.run, batch=size))
        return Trial(sized, rate(sized, [prompt[:PROMPT] for prompt in prompts[:size]]))

    best = attempt(ways[0], SIZES[0])
    for size in SIZES[1:]:
        if size > len(prompts):
            break
        trial = attempt(ways[0], size)
        if trial.rate < WORTH * best.rate:
            break
        best = trial
    trials = [best, *(attempt(way, best.pipeline.run.batch) for way in ways[1:])]
    return sorted(trials, key=lambda trial: -trial.rate)
