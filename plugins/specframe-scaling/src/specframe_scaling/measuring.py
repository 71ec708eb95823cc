"""Measurements of a sweep: tau of every trained drafter, and cycles of several rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import torch

from specframe import Pipeline, measure_tau
from specframe.plugin import read_plan, write_json
from specframe_scaling.points import Passes, Point, Speed, make_point, name_of

Kind = TypeVar("Kind", Point, Speed)
WARM, CYCLES = 3, 24
"""Numbers of cycles before those that are timed, and of timed ones."""
LEAVES = ("run.costs=null",)
"""Overrides while measuring: drafts have the recipe tree's size, so that tau does not depend on the machine."""


class Bench:
    """A recipe whose target is loaded once and decodes with one trained drafter after another."""

    def __init__(self, recipe: str, changes: Sequence[str], prompts: Sequence[str]) -> None:
        self.recipe, self.changes, self.given = recipe, list(changes), list(prompts)
        self._target: Any = None

    def pipeline(self, folder: Path, *more: str) -> Pipeline:
        """Returns the recipe with the drafter in the folder, and further overrides."""
        plan = read_plan(self.recipe, [*self.changes, *LEAVES, f"drafter.weights={folder}", *more])
        pipeline = Pipeline.build(plan, self._target)
        self._target = pipeline.parts.target
        return pipeline

    def prompts(self, pipeline: Pipeline) -> Sequence[str | list[int]]:
        """Returns the prompts that are decoded: the given ones, or the recipe's."""
        return self.given or pipeline.run.prompts

    def point(self, folder: Path, seed: int) -> Point:
        """Returns the point of the drafter in the folder."""
        pipeline = self.pipeline(folder)
        found = measure_tau(pipeline, self.prompts(pipeline))
        return make_point(folder, seed, found.cycles.tolist(), found.reached.tolist())

    def speed(self, folder: Path, size: tuple[int, int], batch: int) -> Speed:
        """Returns the times of cycles of `batch` rows with the drafter in the folder, and of passes without drafts."""
        pipeline = self.pipeline(folder)
        prompts = self.prompts(pipeline)
        chosen = [prompts[place % len(prompts)] for place in range(batch)]
        plain, timed = time_cycles(pipeline.plain(), chosen), time_cycles(pipeline, chosen)
        return Speed(
            layers=size[0],
            width=size[1],
            batch=batch,
            nodes=timed.nodes,
            plain_seconds=plain.whole,
            target_seconds=timed.target,
            draft_seconds=timed.drafter / timed.passes,
            other_seconds=timed.whole - timed.drafter - timed.target,
            tokens_per_second=timed.tokens / timed.whole,
            tau=timed.tokens / batch,
        )

    def passes(self, folders: Mapping[tuple[int, int], Path]) -> Passes | None:
        """Returns the times of passes with a drafter of each size, by `run.costs: measured`; None on accelerators."""
        costs = {size: self.pipeline(folder, "run.costs=measured").parts.costs for size, folder in folders.items()}
        known = {size: cost for size, cost in costs.items() if cost is not None}
        if not known:
            return None
        first = next(iter(known.values()))
        nodes, seconds = zip(*first.passes, strict=True)
        return Passes(list(nodes), list(seconds), {name_of(size): cost.draft for size, cost in known.items()})


@dataclass(frozen=True)
class TimedCycles:
    """Cycles in which all rows are live: medians of their seconds, which are robust to other load on the machine."""

    whole: float
    target: float
    drafter: float
    passes: float
    """Number of the drafter's passes in a cycle."""
    tokens: float
    """Tokens committed in a cycle, by all rows together."""
    nodes: list[float]
    """Drafted nodes per row at each level."""


def time_cycles(pipeline: Pipeline, prompts: Sequence[str | list[int]]) -> TimedCycles:
    """Times `CYCLES` cycles of the prompts in one batch."""
    nodes = pipeline.parts.nodes
    rows = [pipeline.encode(prompt) for prompt in prompts]
    room = pipeline.parts.target.context - max(map(len, rows)) - nodes - 1
    endless = replace(
        pipeline.sampling, ignore_eos=True, stop=[], max_new_tokens=min((WARM + CYCLES) * (nodes + 1), room)
    )
    requests, clock = pipeline.requests(rows, endless), pipeline.clock()
    seconds: dict[str, list[float]] = {"whole": [], "target": [], "drafter": []}
    levels: list[torch.Tensor] = []
    tokens = passes = 0
    with pipeline.open(requests, slots=len(rows), clock=clock) as session:
        session.admit(requests)
        for number in range(-WARM, CYCLES):
            before, calls, start = dict(clock.seconds), clock.calls["drafter"], perf_counter()
            cycle = session.step()
            clock.settle()
            if number < 0:
                continue
            seconds["whole"].append(perf_counter() - start)
            for name in ("target", "drafter"):
                seconds[name].append(clock.seconds[name] - before.get(name, 0.0))
            passes += clock.calls["drafter"] - calls
            tokens += int(cycle.verdict.length.sum()) + len(rows)
            levels.append(torch.bincount(cycle.draft.depth[cycle.draft.valid], minlength=1)[1:].double() / len(rows))
    depth = max(map(len, levels))
    summed = torch.stack([torch.nn.functional.pad(level, (0, depth - len(level))) for level in levels]).sum(0)
    return TimedCycles(
        **{name: median(found) for name, found in seconds.items()},
        passes=max(passes / CYCLES, 1),
        tokens=tokens / CYCLES,
        nodes=(summed / CYCLES).tolist(),
    )


def load_or_make(path: Path, kind: type[Kind], make: Callable[[], Kind]) -> Kind:
    """Returns the object in a file, or creates one and writes it there."""
    if path.exists():
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    made = make()
    write_json(path, asdict(made))
    return made


def kept_passes(path: Path, bench: Bench, folders: Mapping[tuple[int, int], Path]) -> Passes | None:
    """Returns the passes in a file if it has those of every size, or measures them and writes them there."""
    if path.exists():
        known = Passes(**json.loads(path.read_text(encoding="utf-8")))
        if known.draft.keys() == set(map(name_of, folders)):
            return known
    passes = bench.passes(folders)
    if passes is not None:
        write_json(path, asdict(passes))
    return passes
