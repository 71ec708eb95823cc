"""A drafter of several sizes, measured: ``python research/analysis/nested.py recipes/training/s2d.yaml WEIGHTS``.

Each of its sub-models alone, and the smallest one that is sure by several confidences: tau, its change from all layers
paired by prompt, and how many of the drafter's layers run for a committed token, prompts left out. A layer that runs
over n positions counts n times. Temperature 0; intervals are 95 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import specframe
from specframe import Pipeline
from specframe.bench.contest.datasets import SHIPPED, read_questions, spread
from specframe_report.intervals import Array, Estimate, Measure, estimate, estimate_change
from specframe_report.measures import pooled

CONFIDENCES = (0.3, 0.5, 0.7, 0.9)


@dataclass
class Counted:
    """Work of decoding each prompt: cycles, committed tokens and the drafter's layers."""

    cycles: list[int]
    tokens: list[int]
    layers: list[int]

    @property
    def tau(self) -> Measure:
        """Tokens committed per cycle."""
        return pooled(_cells(self.tokens), _cells(self.cycles))

    @property
    def cost(self) -> Measure:
        """Layers run per committed token."""
        return pooled(_cells(self.layers), _cells(self.tokens))


def contestants(depth: int, exits: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """Yields the contestants, all layers first: name and overrides of the recipe."""
    for exit in (depth, *reversed(exits)):
        yield f"{exit} layers", [f"drafter.exits=[{exit}]", "drafter.whole=false"]
    for confidence in CONFIDENCES:
        yield f"confidence {confidence}", [f"drafter.confidence={confidence}"]


def decode(pipeline: Pipeline, prompts: Sequence[list[int]]) -> Counted:
    """Every prompt by itself."""
    found = Counted([], [], [])
    nested: Any = pipeline.parts.drafter
    for prompt in prompts:
        with counting(nested.drafter.module) as positions:
            acceptance = pipeline.generate([prompt]).acceptance
        found.cycles.append(acceptance.cycles)
        found.tokens.append(acceptance.cycles + acceptance.accepted)
        found.layers.append(sum(positions) - read_once(positions, len(prompt)))
    return found


def read_once(positions: Sequence[int], prompt: int) -> int:
    """Returns the prompt's part of the positions that each layer ran over: layers that were never asked read none."""
    return sum(min(prompt, count) for count in positions)


@contextmanager
def counting(model: nn.Module) -> Iterator[list[int]]:
    """Counts the positions that each decoder layer runs over, while the context is open."""
    layers: Any = model.get_submodule("model.layers")
    counts = [0] * len(layers)

    def note(index: int, arguments: tuple[Any, ...]) -> None:
        counts[index] += arguments[0].shape[0] * arguments[0].shape[1]

    hooks = [layer.register_forward_pre_hook(lambda _, a, i=i: note(i, a)) for i, layer in enumerate(layers)]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def shown(found: Estimate | None, off: float = 0.0, form: str = ".2f") -> str:
    """A figure with its interval."""
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{found.value + off:{form}} [{found.low + off:{form}}, {found.high + off:{form}}]"


def _cells(counts: Sequence[int]) -> Array:
    return np.array(counts, dtype=np.float64).reshape(-1, 1, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("weights", help="what training the recipe wrote")
    parser.add_argument("--data", action="append", default=[], help="a prompt set, as the bench's option")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    shared = [f"drafter.drafter.weights={options.weights}", f"sampling.max_new_tokens={options.tokens}"]
    whole = specframe.load(options.recipe, overrides=[*shared, "sampling.temperature=0"])
    drafter: Any = whole.parts.drafter
    questions = spread(read_questions(options.data or [SHIPPED]), 0)[: options.limit]
    prompts = [whole.encode(question.turns[0]) for question in questions]
    first: Counted | None = None
    print("| | tau | to all layers | layers run per token |\n|---|---|---|---|")
    for name, overrides in contestants(drafter.drafter.depth, drafter.exits):
        found = decode(specframe.load(options.recipe, overrides=[*shared, *overrides]), prompts)
        change = first and estimate_change(first.tau, found.tau)
        first = first or found
        moved = shown(change[2], -1, "+.1%") if change else ""
        print(f"| {name} | {shown(estimate(found.tau))} | {moved} | {shown(estimate(found.cost))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
