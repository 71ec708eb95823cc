"""Tau of drafters after pictures, and their acceptance by kind of word, paired by picture.

    python research/analysis/images/words.py runs/see-8m/held-out recipes/images/eagle.yaml recipes/images/msd.yaml

The folder is what `research/training/images/seen.py --held-out` wrote. The others are compared with the first recipe;
RECIPE,KEY=VALUE,.. gives a recipe settings of its own. Counts do not depend on the machine's load. What a drafter
predicts for a word that the picture decides (a colour, a shape, a size, a place or a number) is counted by itself.
Speed, over plain decoding, and prefill, the milliseconds that a first draft takes beyond a later one, are of processor
time on one thread.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch

from specframe import Pipeline, load
from specframe.plugin import Committed, Cycle
from specframe_report.intervals import Estimate, Measure, estimate, estimate_change
from specframe_report.measures import pooled

SEEN = re.compile(
    r"\b(red|green|blue|yellow|purple|black|white|grey|circle|square|triangle|cross|small|large"
    r"|top|middle|bottom|left|centre|right|no|one|two|three|four)\b"
)
"""The words that the picture decides."""
KINDS = ("tau", "from the picture", "grammar", "speed", "prefill, ms")


@dataclass
class Count:
    """Counts of one answer's cycles."""

    cycles: int = 0
    tokens: int = 0
    tried: list[int] = field(default_factory=lambda: [0, 0])
    """Tokens of grammar, and of the picture, that the draft was deep enough for."""
    had: list[int] = field(default_factory=lambda: [0, 0])
    """Those of them that it had."""
    seconds: float = 0.0
    plain: float = 0.0
    """Seconds of plain decoding."""
    drafts: list[float] = field(default_factory=list)
    """Seconds of each draft, the first one's with those of taking in the prompt."""

    def ratios(self) -> list[tuple[float, float]]:
        """Tau, the share of each kind that the draft had, speed and prefill, as numerators and denominators."""
        first, *later = self.drafts
        shares = [(self.had[kind], self.tried[kind]) for kind in (1, 0)]
        prefill = 1e3 * (first - median(later)) if later else 0.0
        return [(self.tokens, self.cycles), *shares, (self.plain, self.seconds), (prefill, 1.0 if later else 0.0)]


@contextmanager
def timed(drafter: Any, drafts: list[float]) -> Iterator[None]:
    """Within the block, each draft's seconds are appended, with those of the commit before the first one."""
    began = [0.0]
    commit, propose = drafter.commit, drafter.propose

    def timed_commit(committed: Committed) -> None:
        start = process_time()
        commit(committed)
        began[0] = process_time() - start if committed.prompt is not None else 0.0

    def timed_propose(*given: Any) -> Any:
        start = process_time()
        tree = propose(*given)
        drafts.append(process_time() - start + began[0])
        return tree

    drafter.commit, drafter.propose = timed_commit, timed_propose
    try:
        yield
    finally:
        del drafter.commit, drafter.propose


def seconds_of(pipeline: Pipeline, prompt: Sequence[int]) -> float:
    """Seconds that one prompt's answer takes."""
    start = process_time()
    with pipeline.open(requests := pipeline.requests([prompt])) as session:
        session.run(requests)
    return process_time() - start


def count(pipeline: Pipeline, prompt: Sequence[int], plain: float) -> Count:
    """The counts of one prompt's answer, whose plain decoding took `plain` seconds."""
    found = Count(plain=plain)
    drafted: list[bool | None] = [None]  # the first token is the one of the prompt

    def watch(cycle: Cycle) -> None:
        accepted = int(cycle.verdict.length[0])
        found.cycles += 1
        found.tokens += accepted + 1
        drafted.extend([True] * accepted + [None if accepted == cycle.draft.levels else False])

    start = process_time()
    with (
        pipeline.open(requests := pipeline.requests([prompt])) as session,
        timed(pipeline.parts.drafter, found.drafts),
    ):
        (entry,) = session.run(requests, watch)
    found.seconds = process_time() - start
    for token, kind in zip(drafted, seen([pipeline.tokenizer.decode([t]) for t in entry.tokens]), strict=False):
        if token is not None:
            found.tried[kind] += 1
            found.had[kind] += token
    return found


def seen(words: Sequence[str]) -> list[bool]:
    """Of a text's tokens as text, which ones begin a word that the picture decides."""
    starts = {match.start() for match in SEEN.finditer("".join(words))}
    place, found = 0, []
    for word in words:
        found.append(place + len(word) - len(word.lstrip()) in starts)
        place += len(word)
    return found


def prompts(folder: Path, limit: int | None, descriptions: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the last question about each picture with the turns before it: a description's, or another one."""
    lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    chosen = [record for record in records if (len(record["messages"]) == 2) == descriptions]
    for record in chosen[:limit]:
        first, *rest = record["messages"][:-1]
        picture = {"type": "image", "image": str(folder / record["image"])}
        yield [{"role": "user", "content": [picture, {"type": "text", "text": first["content"]}]}, *rest]


def measures(counts: Sequence[Count]) -> list[Measure]:
    """Tau and the shares over all prompts."""
    figures = np.array([each.ratios() for each in counts], dtype=float)  # [P, kinds, 2]
    return [pooled(figures[:, i, :1, None], figures[:, i, 1:, None]) for i in range(len(KINDS))]


def shown(found: Estimate | None, off: float = 0.0, form: str = ".2f") -> str:
    """A figure with its interval."""
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.value - off:{form}}"
    return f"{found.value - off:{form}} [{found.low - off:{form}}, {found.high - off:{form}}]"


def rows(counts: dict[str, list[Count]]) -> Iterator[str]:
    """The rows of a table in Markdown."""
    yield "| recipe | " + " | ".join(f"{kind} | change" for kind in KINDS) + " |"
    yield "|---" * (1 + 2 * len(KINDS)) + "|"
    first = measures(next(iter(counts.values())))
    for number, (name, each) in enumerate(counts.items()):
        cells = [name]
        for old, new in zip(first, measures(each), strict=True):
            change = estimate_change(old, new) if number else None
            cells += [shown(estimate(new)), "" if change is None else shown(change[2], 1.0, "+.1%")]
        yield f"| {' | '.join(cells)} |"


def opened(name: str) -> Pipeline:
    """The pipeline of RECIPE,KEY=VALUE,.."""
    path, *settings = re.split(r",(?=[\w.]+=)", name)
    return load(path, overrides=settings)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("recipes", nargs="+", metavar="RECIPE[,KEY=VALUE..]")
    parser.add_argument("--limit", type=int, help="pictures of each kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for descriptions in (True, False):
        counts: dict[str, list[Count]] = {}
        turns = list(prompts(options.folder, options.limit, descriptions))
        pipelines = {name: opened(name) for name in options.recipes}
        plain = next(iter(pipelines.values())).plain()
        for number, each in enumerate([turns[0], *turns]):  # the first one warms up
            prompt = plain.encode_turns(each)
            seconds = seconds_of(plain, prompt)  # in turn with the others, so that all meet the same load
            for name, pipeline in pipelines.items():
                found = count(pipeline, prompt, seconds)
                if number:
                    counts.setdefault(name, []).append(found)
        print(f"{'descriptions' if descriptions else 'last answers'} of {len(turns)} pictures", flush=True)
        print("\n".join(rows(counts)), flush=True)


if __name__ == "__main__":
    main()
