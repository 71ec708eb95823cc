"""Cascades, measured: ``python research/analysis/cascade.py RECIPE.. --data gsm8k``.

For each recipe, whose drafter is a `cascade`, and each task: the target's tau, and for each level, from the top, the
drafted tokens that a forward pass of its reviewing drafter gives and the time that the pass takes. Without proposals
from below a pass gives one token. Temperature 0; the first pass of a draft reads what was committed, too.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import specframe
from specframe import Pipeline
from specframe.bench.contest.datasets import SHIPPED, read_questions, spread


@dataclass
class Level:
    """Forward passes of a reviewing drafter, and the seconds that they took."""

    passes: int = 0
    drafts: int = 0
    seconds: float = 0.0


def levels_of(drafter: Any) -> Iterator[Any]:
    """Yields a cascade and those in its place of `draft`."""
    while hasattr(drafter, "review"):
        yield drafter
        drafter = drafter.draft


def watch(review: Any) -> Level:
    """Counts the drafts and forward passes of a drafter from now on."""
    found, expand, propose = Level(), review.expand, review.propose

    def counted(frontier: Any) -> Any:
        start = perf_counter()
        proposal = expand(frontier)
        found.seconds += perf_counter() - start
        found.passes += 1
        return proposal

    def begun(*draft: Any) -> Any:
        found.drafts += 1
        return propose(*draft)

    review.expand, review.propose = counted, begun
    return found


def measure(pipeline: Pipeline, prompts: Sequence[list[int]]) -> Iterator[str]:
    """Yields the cells of a row of the table."""
    levels = list(levels_of(pipeline.parts.drafter))
    found = [watch(level.review) for level in levels]
    cycles = accepted = 0
    for prompt in prompts:
        acceptance = pipeline.generate([prompt]).acceptance
        cycles, accepted = cycles + acceptance.cycles, accepted + acceptance.accepted
    yield f"{1 + accepted / cycles:.2f}"
    for level, counts in zip(levels, found, strict=True):
        timed = 1000 * counts.seconds / max(1, counts.passes)
        each = counts.passes / max(1, counts.drafts)
        given = "" if level is not levels[0] else f"{level.tokens / each:.2f}, "
        yield f"{given}{each:.1f} passes of {timed:.1f} ms a draft"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="+")
    parser.add_argument("--data", action="append", default=[], help="a prompt set, as the bench's option")
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    print("| recipe | task | tau | tokens a pass of the review, from the top |\n|---|---|---|---|")
    for recipe in options.recipe:
        shared = [f"sampling.max_new_tokens={options.tokens}", "sampling.temperature=0", "run.costs=null"]
        pipeline = specframe.load(recipe, overrides=shared)
        tasks: dict[str, list[list[int]]] = defaultdict(list)
        for question in spread(read_questions(options.data or [SHIPPED]), 0)[: options.limit]:
            tasks[question.task].append(pipeline.encode(question.turns[0]))
        for task, prompts in tasks.items():
            tau, *levels = measure(specframe.load(recipe, overrides=shared), prompts)
            print(f"| {recipe.stem} | {task} | {tau} | {'; '.join(levels)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
