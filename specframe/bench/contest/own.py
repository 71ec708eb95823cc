"""Contestants that decode with this package: a recipe, and plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from specframe.bench.contest.optimum import sum_optimum
from specframe.bench.contest.timing import span_seconds
from specframe.bench.contest.weights import weigh
from specframe.decoding.clock import Clock
from specframe.decoding.pipeline import Pipeline, plain_parts
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.decoding.stats import Acceptance
from specframe.kernel.capabilities import is_approximate
from specframe.kernel.composition import will_approximate
from specframe.kernel.contestant import Outcome
from specframe.kernel.interfaces import Target
from specframe.kernel.types import Cycle, TokenTree, Verdict
from specframe.recipes.build import Plan

PHASES = ("prefill", "draft", "score", "verify", "commit")


class RecipeContestant:
    """A recipe's composition around the shared target."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self.plan = plan
        self.lossless: bool | None = getattr(plan.parts["verifier"].component, "lossless", None)
        if will_approximate(plan.parts["target"]):
            self.lossless = False
        self._pipeline: Pipeline | None = None

    def prepare(self, target: Target, sampling: SamplingSettings, batch: int) -> None:
        """Loads the drafter and binds it to the target."""
        built = Pipeline.build(self.plan, target)
        self.lossless = built.lossless
        self._pipeline = replace(built, sampling=sampling, run=replace(built.run, batch=batch))

    def decode(self, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
        """Continues the prompts; the outcome has cycles, acceptance and phases."""
        return decode(_prepared(self._pipeline), rows, seed)

    def find_optimum(self, rows: Sequence[Sequence[int]], seed: int) -> tuple[float, int]:
        """Sums over the cycles of `decode` the acceptance of the best verifier at the root; see `sum_optimum`."""
        return sum_optimum(_prepared(self._pipeline), rows, seed)

    def weigh(self, row: Sequence[int]) -> dict[str, int]:
        """Counts the weights that its forwards read in the first cycles after a prompt; see `weigh`."""
        return weigh(_prepared(self._pipeline), row)


class Plain:
    """Plain autoregressive decoding of the target by this package: one token per cycle, no drafts."""

    name = "plain"
    lossless: bool | None = True

    def __init__(self) -> None:
        self._pipeline: Pipeline | None = None

    def prepare(self, target: Target, sampling: SamplingSettings, batch: int) -> None:
        """Builds the pipeline around the target."""
        self.lossless = not is_approximate(target)
        self._pipeline = Pipeline.around(plain_parts(target), sampling, RunSettings(batch=batch))

    def decode(self, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
        """Continues the prompts, one token per cycle."""
        return decode(_prepared(self._pipeline), rows, seed)


def _prepared(pipeline: Pipeline | None) -> Pipeline:
    if pipeline is None:
        raise RuntimeError("a contestant decodes only after it was prepared")
    return pipeline


def decode(pipeline: Pipeline, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
    """The pipeline's continuation of the prompts [B][tokens], decoded as one batch and timed."""
    arrivals: list[list[float]] = [[] for _ in rows]

    def arrive(row: int, tokens: list[int]) -> None:
        arrivals[row] += [perf_counter()] * len(tokens)

    requests = pipeline.requests(rows, seed=seed, listener=arrive)
    clock, notes = pipeline.clock(), list[Note]()
    with clock.phase("session"), pipeline.open(requests, slots=len(rows), clock=clock) as session:
        entries = session.run(requests, lambda cycle: notes.append(Note(session.numbers, cycle)))
    clock.settle()
    tokens = [entry.tokens for entry in entries]
    return Outcome(tokens, arrivals, lambda: describe(clock, notes, [len(row) for row in tokens]))


class Note:
    """The part of a cycle needed to count acceptance after timing; without q."""

    __slots__ = ("draft", "length", "parent", "rows", "valid")

    def __init__(self, rows: list[int], cycle: Cycle) -> None:
        self.rows = rows
        self.draft = cycle.draft.levels
        self.parent, self.valid = cycle.draft.parent, cycle.draft.valid
        self.length = cycle.verdict.length

    def of_row(self, index: int) -> tuple[TokenTree, Verdict]:
        """The draft and verdict of one row of the batch alone."""
        parent, valid = self.parent[index : index + 1], self.valid[index : index + 1]
        nothing = torch.zeros_like(parent)
        length: Tensor = self.length[index : index + 1]
        draft = TokenTree(tokens=nothing, parent=parent, valid=valid, draw=nothing, levels=self.draft)
        return draft, Verdict(path=nothing, length=length, bonus=nothing[:, 0])


def describe(clock: Clock, notes: Sequence[Note], counts: Sequence[int]) -> list[Mapping[str, Any]]:
    """A recipe's further figures for each row, given how many tokens each got.

    Acceptance is counted per row. Times and calls are measured for the whole batch and distributed to rows in
    proportion to their tokens.
    """
    acceptances = [Acceptance() for _ in counts]
    for note in notes:
        for index, row in enumerate(note.rows):
            acceptances[row].count(*note.of_row(index))
    phases = {name: clock.seconds[name] for name in PHASES}
    phases["other"] = max(clock.seconds["session"] - sum(phases.values()), 0.0)
    spans = sum(clock.calls.values())
    found: list[Mapping[str, Any]] = []
    for acceptance, count in zip(acceptances, counts, strict=True):
        acceptance.settle()
        share = count / sum(counts)
        found.append(
            {
                "cycles": acceptance.cycles,
                "accepted": acceptance.accepted,
                "drafted": acceptance.drafted,
                "reached": acceptance.reached,
                "possible": acceptance.possible,
                "phases": {name: share * seconds for name, seconds in phases.items()},
                "target_seconds": share * clock.seconds["target"],
                "target_calls": share * clock.calls["target"],
                "drafter_seconds": share * clock.seconds["drafter"],
                "drafter_calls": share * clock.calls["drafter"],
                "overhead": clock.overhead,
                "bench_seconds": share * spans * span_seconds(),
            }
        )
    return found
