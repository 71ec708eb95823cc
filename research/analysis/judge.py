"""Quality and tau of lossy rules on two-step sums: ``python research/analysis/judge.py sums --count 24 > sums.jsonl``.

Then ``python research/analysis/judge.py measure recipes/lossy/surprise.yaml sums.jsonl verifier.limit=2 ...``: every
argument is a contestant, its overrides separated by ``;``. All decode the same questions with the same drafter, `match`
first; quality is compared question by question. Nothing is timed: tau does not depend on the machine's load.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import specframe
from specframe import Pipeline
from specframe.bench.figures.quality import paired_interval
from specframe.plugin import Cycle, find_check, read_records

KINDS = ("collected", "altogether", "shared equally", "change", "years", "%")
"""Words of the forms of `word_problems.py` that take two steps and that Qwen2.5-Coder-0.5B mostly solves."""
OTHERS = ("What is (", "bonus", "half as many")


def sums(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Yields questions with their answers."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    from word_problems import problems

    fitting = [
        {"question": question, "answer": steps}
        for question, steps in problems(3 * count, seed)
        if any(word in question for word in KINDS) and not any(word in question for word in OTHERS)
    ]
    yield from fitting[:count]


@dataclass
class Departure:
    """The cycles of a decoding, and how far its tokens are from the target's own choices."""

    cycles: int = 0
    tokens: int = 0
    others: int = 0
    """Tokens that are not the target's most probable ones."""
    nats: float = 0.0
    """Sum over these of log p of the most probable token less that of the emitted one."""
    qualities: list[float] = field(default_factory=list)

    def add(self, cycle: Cycle) -> None:
        """Adds a cycle of a session that decodes at temperature 0."""
        if not cycle.draft.levels:
            return
        verdict = cycle.verdict
        above, here = verdict.slots[:, :-1].clamp(min=0), verdict.slots[:, 1:]
        laws = torch.log_softmax(cycle.scores.logits.float(), -1)  # [B, N, V]
        drafted = cycle.draft.tokens.gather(1, here.clamp(min=0))  # [B, A]
        at = laws[torch.arange(len(above))[:, None], above]  # [B, A, V]
        lost = (at.amax(-1) - at.gather(2, drafted[..., None])[..., 0]).where(here >= 0, 0)
        self.cycles += len(above)
        self.tokens += int(verdict.count.sum())
        self.others += int((lost > 0).sum())
        self.nats += float(lost.sum())

    @property
    def tau(self) -> float:
        """Tokens per cycle."""
        return self.tokens / self.cycles


def decode(pipeline: Pipeline, file: Path) -> Departure:
    """Decodes the questions of a file, and checks their answers."""
    records, check, found = read_records(file), find_check("number", run_code=False), Departure()
    requests = pipeline.requests([pipeline.encode(record.turns[0]) for record in records])
    with pipeline.open(requests) as session:
        entries = session.run(requests, found.add)
    for record, entry in zip(records, entries, strict=True):
        found.qualities.append(check(pipeline.decode(entry.tokens), record.turns[0], record.reference or ""))
    return found


def measure(recipe: str, file: Path, contestants: Sequence[str], given: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yields the figures of `match`, then of each contestant."""
    plain = None
    for name in ("verifier={use: match}", *contestants):
        found = decode(specframe.load(recipe, overrides=[*given, *name.split(";")]), file)
        plain = plain or found
        change = paired_interval(np.array(found.qualities) - np.array(plain.qualities))
        yield {
            "contestant": name,
            "questions": len(found.qualities),
            "right": sum(found.qualities),
            "change": change and change.as_dict(),
            "tau": found.tau,
            "others": found.others / found.tokens,
            "nats": found.nats / found.tokens,
        }


def main() -> None:
    """Writes questions, or measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("sums")
    write.add_argument("--count", type=int, default=200)
    write.add_argument("--seed", type=int, default=909)
    run = commands.add_parser("measure")
    run.add_argument("recipe")
    run.add_argument("file", type=Path)
    run.add_argument("contestants", nargs="+")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override for all of them")
    asked = parser.parse_args()
    if asked.command == "sums":
        for line in sums(asked.count, asked.seed):
            print(json.dumps(line))
        return
    for figures in measure(asked.recipe, asked.file, asked.contestants, asked.set):
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
