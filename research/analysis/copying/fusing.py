"""A trained drafter alone and with copies in its tree, as several machines would draft.

    python research/analysis/copying/fusing.py recipes/eagle.yaml recipes/eagle-suffix.yaml --data gsm8k --limit 12

A machine is what its forward passes take: as many nodes are drafted as pay there. Every cycle's nodes and every forward
pass of the drafter are counted and take the machine's times, so the load of the one that runs this does not matter.
What Python takes is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

from specframe import Pipeline, load
from specframe.bench.contest.datasets import Question, read_questions, spread
from specframe.kernel.costs import Costs
from specframe.plugin import Cycle

LEVEL = 1.5
"""Milliseconds of a forward pass of EAGLE's drafter."""
MACHINES = {
    "AVX2": Costs.of({1: 13.7, 2: 14.9, 4: 19.0, 8: 30.7, 16: 55.3}, LEVEL),
    "AVX-512": Costs.of({1: 10.0, 2: 10.3, 4: 11.1, 6: 15.5, 8: 17.9, 10: 19.7, 16: 28.4, 32: 47.4}, LEVEL),
    "nodes nearly free": Costs.of({1: 26.0, 8: 31.0, 16: 37.0, 24: 41.0, 64: 77.0}, 2 * LEVEL),
}
"""Milliseconds of a forward pass of SmolLM2 in bfloat16 by its nodes: docs/howto/quantise.md."""


@dataclass(frozen=True)
class Count:
    """Counts of committed and scored tokens of some cycles, and their time."""

    cycles: int = 0
    tokens: int = 0
    nodes: int = 0
    time: float = 0.0
    """Time in units of the time of a token that is not drafted."""

    def __add__(self, other: Count) -> Count:
        """Returns the sum of both."""
        return Count(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    @property
    def token(self) -> float:
        """The time of a token."""
        return self.time / self.tokens

    def __str__(self) -> str:
        """Tau, and the nodes of a cycle."""
        return f"{self.tokens / self.cycles:.2f} ({self.nodes / self.cycles:.1f})"


def count(pipeline: Pipeline, question: Question, costs: Costs) -> Count:
    """The count of one question, with as many nodes as pay at these costs."""
    found = list[Count]()

    def watch(cycle: Cycle) -> None:
        if cycle.committed.prompt is None:
            nodes = int(cycle.draft.valid.sum())
            found.append(Count(1, int(cycle.committed.count.sum()), nodes, costs.score(nodes)))

    pipeline = pipeline.with_parts(costs=costs)
    requests, clock = pipeline.requests([pipeline.encode(question.turns[0])]), pipeline.clock()
    with pipeline.open(requests, clock=clock) as session:
        session.run(requests, watch)
    return sum(found, Count(time=costs.level * clock.calls["drafter"]))


def table(questions: Sequence[Question], counts: Mapping[str, Sequence[Count]]) -> Iterator[str]:
    """The rows of a table by kind of question, and the question that loses most; `counts` are both recipes' by name."""
    kinds = list(dict.fromkeys(question.task for question in questions))
    for kind in [*sorted(kinds), "all"]:
        chosen = [question.id for question in questions if kind in (question.task, "all")]
        one, other = (sum((counts[name][place] for name in chosen), Count()) for place in range(2))
        worst = min(chosen, key=lambda name: _faster(counts[name]))
        faster = f"{_faster((one, other)) - 1:+.1%} | {_faster(counts[worst]) - 1:+.1%} (`{worst}`)"
        yield f"| {kind} ({len(chosen)}) | {one} | {other} | {faster} |"


def _faster(pair: Sequence[Count]) -> float:
    one, other = pair
    return one.token / other.token


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one table a machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs=2, help="the drafter alone, and with copies")
    parser.add_argument("--data", action="append", required=True, metavar="SET", help="as in a bench; may be repeated")
    parser.add_argument("--limit", type=int, default=12, help="prompts, spread over the sets and tasks")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--machine", choices=MACHINES, action="append", help="default: all")
    options = parser.parse_args(arguments)
    overrides = ["run.costs=null", f"sampling.max_new_tokens={options.max_new_tokens}"]
    pipelines = [load(recipe, overrides=overrides) for recipe in options.recipes]
    questions = spread(read_questions(options.data), 0)[: options.limit]
    for machine in options.machine or MACHINES:
        costs = MACHINES[machine]
        print(
            f"\n{machine}\n\n| prompts | alone | with copies | faster | worst prompt |\n|---|---|---|---|---|",
            flush=True,
        )
        counts = {each.id: [count(pipeline, each, costs) for pipeline in pipelines] for each in questions}
        print("\n".join(table(questions, counts)), flush=True)


if __name__ == "__main__":
    main()
