"""The part of a sweep that measures: tau of every trained drafter, and cycles of several rows side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch

from specframe import Pipeline, measure_tau
from specframe.plugin import read_plan, write_json
from specframe_scaling.points import Passes, Point, Speed, make_point, name_of

Kind = TypeVar("Kind", Point, Speed)
WARM, CYCLES = 3, 24
"""Cycles before those that are timed, and those."""
LEAVES = ("run.costs=null",)
"""Values of the recipe while it is measured: drafts are as large as its tree, so that tau is no machine's own."""


class Bench:
    """A recipe whose target is loaded once and decodes with one trained drafter after another."""

    def __init__(self, recipe: str, changes: Sequence[str], prompts: Sequence[str]) -> None:
        self.recipe, self.changes, self.given = recipe, list(changes), list(prompts)
        self._target: Any = None

    def pipeline(self, folder: Path, *more: str) -> Pipeline:
        """The recipe with the drafter in the folder, and further values."""
        plan = read_plan(self.recipe, [*self.changes, *LEAVES, f"drafter.weights={folder}", *more])
        pipeline = Pipeline.build(plan, self._target)
        self._target = pipeline.parts.target
        return pipeline

    def prompts(self, pipeline: Pipeline) -> Sequence[str]:
        """The prompts that are decoded: those given, or the recipe's."""
        return self.given or pipeline.run.prompts

    def point(self, folder: Path, seed: int) -> Point:
        """The point of the drafter in the folder."""
        pipeline = self.pipeline(folder)
        found = measure_tau(pipeline, self.prompts(pipeline))
        return make_point(folder, seed, found.cycles.tolist(), found.reached.tolist())

    def speed(self, folder: Path, size: tuple[int, int], batch: int) -> Speed:
        """The times of cycles of `batch` rows with the drafter in the folder, and of passes without drafts."""
        pipeline = self.pipeline(folder)
        prompts = self.prompts(pipeline)
        chosen = [prompts[place % len(prompts)] for place in range(batch)]
        plain, _, _, _ = cycles(pipeline.plain(), chosen)
        seconds, calls, tokens, nodes = cycles(pipeline, chosen)
        drafting, levels = seconds["drafter"], max(calls["drafter"] / CYCLES, 1)
        whole = seconds["whole"]
        return Speed(
            layers=size[0],
            width=size[1],
            batch=batch,
            nodes=nodes,
            plain_seconds=plain["whole"] / CYCLES,
            target_seconds=seconds["target"] / CYCLES,
            draft_seconds=drafting / CYCLES / levels,
            other_seconds=(whole - drafting - seconds["target"]) / CYCLES,
            tokens_per_second=tokens / whole,
            tau=tokens / CYCLES / batch,
        )

    def passes(self, folders: Mapping[tuple[int, int], Path]) -> Passes | None:
        """The times of passes with a drafter of each size, as `run.costs: measured` has them; None on accelerators."""
        costs = {size: self.pipeline(folder, "run.costs=measured").parts.costs for size, folder in folders.items()}
        known = {size: cost for size, cost in costs.items() if cost is not None}
        if not known:
            return None
        first = next(iter(known.values()))
        nodes, seconds = zip(*first.passes, strict=True)
        return Passes(list(nodes), list(seconds), {name_of(size): cost.draft for size, cost in known.items()})


def cycles(pipeline: Pipeline, prompts: Sequence[str]) -> tuple[dict[str, float], dict[str, float], int, list[float]]:
    """Times `CYCLES` cycles in which every prompt's row is live.

    Returns seconds and calls by phase, tokens committed by all rows, and the mean number of nodes of each level.
    """
    endless = replace(pipeline.sampling, ignore_eos=True, max_new_tokens=(WARM + CYCLES) * (pipeline.parts.nodes + 1))
    longest = pipeline.parts.target.context
    rows = [pipeline.encode(prompt) for prompt in prompts]
    room = longest - max(map(len, rows)) - pipeline.parts.nodes - 1
    settings = replace(endless, max_new_tokens=min(endless.max_new_tokens, room), stop=[])
    clock = pipeline.clock()
    levels: list[torch.Tensor] = []
    tokens = 0
    with pipeline.open(pipeline.requests(rows, settings), slots=len(rows), clock=clock) as session:
        session.admit(pipeline.requests(rows, settings))
        for _ in range(WARM):
            session.step()
        clock.settle()
        before, called, start = dict(clock.seconds), dict(clock.calls), perf_counter()
        for _ in range(CYCLES):
            cycle = session.step()
            tokens += int(cycle.verdict.length.sum()) + len(rows)
            levels.append(torch.bincount(cycle.draft.depth[cycle.draft.valid], minlength=1)[1:].double() / len(rows))
        whole = perf_counter() - start
        clock.settle()
    names = ("drafter", "target")
    seconds = {name: clock.seconds[name] - before.get(name, 0.0) for name in names} | {"whole": whole}
    calls = {name: float(clock.calls[name] - called.get(name, 0)) for name in names}
    depth = max(map(len, levels))
    nodes = sum(torch.nn.functional.pad(level, (0, depth - len(level))) for level in levels) / CYCLES
    return seconds, calls, tokens, nodes.tolist() if isinstance(nodes, torch.Tensor) else []


def kept(path: Path, kind: type[Kind], make: Callable[[], Kind]) -> Kind:
    """The object in a file, or a new one, which is then written there."""
    if path.exists():
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    made = make()
    write_json(path, asdict(made))
    return made
