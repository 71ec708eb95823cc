"""Gains of a small drafting model by training: ``python research/analysis/alignment.py``, or one of its analyses.

    aligned    talk-7m drafted for by a new model: supervised, distilled, and on-policy with each divergence
    shifted    the same model, trained on dialogue, on programming tasks: before, learning online, and trained offline

`--splits` names the texts of the small model's own training, which `corpora.py --simple` writes, and `SPECFRAME_DATA`
the published prompt sets. Every step is one command of specframe, printed as it begins; `--work` keeps what they write,
and a step that has written is not taken again.
The recipes are those of the pages that show them. `shifted` begins with
what `aligned` trained.

A figure is a mean over positions of texts that the target wrote to prompts of published sets: at temperature 1 the sum
of min(p, q), which speculative sampling accepts of the first drafted token; at temperature 0 how often the most
probable tokens agree. Intervals are over prompts, and so are those of differences, text by text. Numbers go to
alignment.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from sample import choose, command, interval, keep

import specframe
from specframe import Pipeline
from specframe.bench.contest.datasets import FOLDER, read_questions, spread
from specframe.components.drafters.model import ModelDrafter
from specframe.files.provenance import write_json
from specframe.plugin import Teacher

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
NUMBERS = HERE / "alignment.json"
PAGES = {"align.yaml": "methods/drafting-models.md", "align-online.yaml": "howto/online.md"}
"""The recipes, and the pages that show them."""
FORWARD = "{use: distillation, alpha: 1.0}"
OWN = "{use: on-policy, share: 0.5}"
TAUGHT = (
    ("{use: text}", "offline", FORWARD),
    (OWN, "forward", FORWARD),
    (OWN, "reverse", "{use: reverse-kl}"),
    (OWN, "jsd", "{use: jsd}"),
    (OWN, "tv", "{use: tv}"),
    (OWN, "tvd-plus", "{use: tvd-plus}"),
)
"""Variants of the training on the target's answers: rollout, name and loss."""
RATE = "5.0e-4"
"""The learning rate of these steps, and of those on programming tasks."""
BATCH = 16
DOCUMENTS = 8000
"""Dialogues that are trained on as people wrote them, at most; the first of them are asked of the target."""
Pairs = list[tuple[float, int]]
"""Sum of a figure over the positions of each prompt, and their number."""


@dataclass
class Work:
    """A folder in which commands are run, and the processor's seconds of those that an analysis needed."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def prepare(self, splits: Path, data: Path) -> None:
        """Writes the recipes, as the pages show them, and the texts and prompts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        dialogue = islice(read(splits / "train" / "dialogue.jsonl"), DOCUMENTS)
        self._write("dialogue", dialogue)
        held = read(splits / "heldout" / "dialogue.jsonl")
        self._write("held-out", ({"prompt": record["messages"][0]["content"]} for record in held))
        tasks = json.loads((data / "instruct/gpteacher/codegen-instruct.json").read_text(encoding="utf-8"))
        self._write("tasks", ({"prompt": f"{task['instruction']}\n{task['input']}".strip()} for task in tasks))
        for title, page in PAGES.items():
            shown = (DOCS / page).read_text(encoding="utf-8")
            block = re.search(f'```yaml title="{re.escape(title)}"\n(.*?)```', shown, re.DOTALL)
            if block is None:
                raise SystemExit(f"{page} shows no {title}")
            (self.folder / title).write_text(block[1], encoding="utf-8")

    def _write(self, name: str, records: Iterable[Any]) -> None:
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        (self.folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")

    def run(self, written: str, *arguments: str) -> None:
        """Runs a command of specframe, unless what it writes is there; its processor time is kept in seconds.json."""
        known = self.folder / "seconds.json"
        took: dict[str, float] = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
        if (self.folder / written).exists():
            self.seconds[written] = took.get(written, 0.0)
            return
        print("specframe", shlex.join(arguments), flush=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "specframe", *arguments], cwd=self.folder, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds[written] = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        write_json(known, took | {written: self.seconds[written]})
        print(f"{self.seconds[written]:.0f} s of the processor", flush=True)

    def answer(self, prompts: str, out: str, limit: int) -> None:
        """Lets the target answer prompts."""
        given = ["align.yaml", "drafter.use=none", "tree=null", "run.batch=64", "--prompts", prompts]
        self.run(f"{out}/distill.json", "distill-data", *given, "--limit", str(limit), "--out", out)

    def train(self, out: str, data: str, steps: int, *overrides: str, start: str | None = None) -> None:
        """Trains the drafter, from the weights of an earlier step or afresh."""
        warm = ["--warm-start", f"drafter.weights={start}"] if start else []
        given = [f"train.data=[{data}]", f"train.out={out}", f"train.steps={steps}", f"train.validate_every={steps}"]
        self.run(f"{out}/train.json", "train", "align.yaml", *warm, *given, *overrides)


class Judged:
    """The target's own texts to prompts that no step has seen, at temperatures 1 and 0, and its answers there."""

    def __init__(self, pipeline: Pipeline, prompts: str | Path, options: argparse.Namespace) -> None:
        self.target: Any = pipeline.parts.target
        asked = [
            pipeline.encode(question.turns[0])
            for question in spread(read_questions([str(prompts)]), 0)[: options.limit]
        ]
        self.teachers: dict[float, list[Teacher]] = {}
        for temperature in (1.0, 0.0):
            sampling = {"temperature": temperature, "max_new_tokens": options.tokens}
            composed = specframe.compose(
                target=self.target, drafter="none", verifier="match", sampling=sampling, run={"batch": 32}
            )
            texts = zip(asked, composed.generate(asked).tokens, strict=True)
            self.teachers[temperature] = list(self._taught([(prompt, new) for prompt, new in texts if new]))

    def _taught(self, texts: Sequence[tuple[list[int], Sequence[int]]]) -> Iterator[Teacher]:
        for first in range(0, len(texts), BATCH):
            rows = texts[first : first + BATCH]
            tokens = torch.zeros(len(rows), max(len(prompt) + len(new) for prompt, new in rows), dtype=torch.int64)
            mask = torch.zeros_like(tokens, dtype=torch.bool)
            for row, (prompt, new) in enumerate(rows):
                tokens[row, : len(prompt) + len(new)] = torch.tensor([*prompt, *new])
                mask[row, len(prompt) - 1 : len(prompt) + len(new) - 1] = True
            yield self.target.teach(tokens, mask)

    @torch.no_grad()
    def judge(self, weights: Path) -> dict[float, Pairs]:
        """Returns by temperature a drafter's acceptance of each prompt, its sum and its positions."""
        drafter = ModelDrafter(weights=str(weights))
        drafter.bind(self.target)
        found: dict[float, Pairs] = {}
        for temperature, teachers in self.teachers.items():
            found[temperature] = []
            for teacher in teachers:
                q = drafter.read_text(teacher.tokens).log_softmax(-1)
                if temperature:
                    accepted = torch.minimum(teacher.log_law, q).exp().sum(-1)
                else:
                    accepted = (teacher.argmax == q.argmax(-1)).float()
                sums = accepted.where(teacher.mask, 0).sum(1).tolist()
                found[temperature] += zip(sums, teacher.mask.sum(1).tolist(), strict=True)
        return found


def mean(rows: Sequence[tuple[float, int]]) -> float:
    """The mean over positions."""
    return sum(value for value, _ in rows) / sum(count for _, count in rows)


def compared(found: Mapping[str, dict[float, Pairs]], base: str) -> dict[str, Any]:
    """Returns by drafter and temperature the acceptance, and its distance from the base's, with intervals."""
    numbers: dict[str, Any] = {}
    for name, pairs in found.items():
        numbers[name] = {}
        for temperature, rows in pairs.items():
            gained = [
                (one - other, count) for (one, count), (other, _) in zip(rows, found[base][temperature], strict=True)
            ]
            numbers[name][f"temperature {temperature:g}"] = interval(rows, mean)
            numbers[name][f"gain at {temperature:g}"] = interval(gained, mean)
    return numbers


def read(path: Path) -> Iterator[Any]:
    """The records of a JSONL file."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def aligned(options: argparse.Namespace, work: Work) -> dict[str, Any]:
    """The acceptance after each kind of training, on dialogues that no step has seen."""
    answers = "dialogue/answers.jsonl"
    work.train("supervised", "dialogue.jsonl", options.steps)
    work.answer("dialogue.jsonl", "dialogue", options.conversations)
    work.train("answers", answers, options.distilled, "train.lr=1.0e-3", start="supervised")
    for rollout, out, loss in TAUGHT:
        given = [f"train.rollout={rollout}", f"loss=[{loss}]", f"train.lr={RATE}", "train.validation=0"]
        work.train(out, answers, options.aligned, *given, start="answers")
    judged = Judged(specframe.load(work.folder / "align.yaml"), work.folder / "held-out.jsonl", options)
    trained = ["supervised", "answers", *(out for _, out, _ in TAUGHT)]
    return {"drafters": compared({name: judged.judge(work.folder / name) for name in trained}, base="answers")}


def shifted(options: argparse.Namespace, work: Work) -> dict[str, Any]:
    """The acceptance on programming tasks, and on what the drafter was trained on, before and after."""
    work.run(
        "online/online.json", "run", "align-online.yaml", "--prompts", "tasks.jsonl", "--limit", str(options.requests)
    )
    work.answer("tasks.jsonl", "code", options.requests)
    given = [f"loss=[{FORWARD}]", f"train.lr={RATE}", "train.validation=0"]
    work.train("code-offline", "code/answers.jsonl", options.retrained, *given, start="answers")
    numbers = {}
    judged_on: dict[str, str | Path] = {"code": "mbpp", "dialogue": work.folder / "held-out.jsonl"}
    for kind, prompts in judged_on.items():
        judged = Judged(specframe.load(work.folder / "align.yaml"), prompts, options)
        found = {name: judged.judge(work.folder / name) for name in ("answers", "online", "code-offline")}
        numbers[kind] = compared(found, base="answers")
    return numbers


ANALYSES = ("aligned", "shifted")
SIZES = ("limit", "tokens", "steps", "conversations", "distilled", "aligned", "requests", "retrained")
"""The options that say how much is trained and judged."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, measures, prints and writes what is asked for."""
    parser = command(__doc__, tokens=64)
    parser.set_defaults(limit=128)
    parser.add_argument("--splits", type=Path, required=True, help="the folder that corpora.py wrote")
    parser.add_argument("--work", type=Path, default=Path("runs/align"), help="where the commands write")
    parser.add_argument("--steps", type=int, default=900, help="of supervised training")
    parser.add_argument("--conversations", type=int, default=426, help="that the target answers")
    parser.add_argument("--distilled", type=int, default=200, help="steps on these answers")
    parser.add_argument("--aligned", type=int, default=40, help="steps of each further training")
    parser.add_argument("--requests", type=int, default=2048, help="programming tasks that are served")
    parser.add_argument("--retrained", type=int, default=480, help="steps of the training on the same tasks")
    options = choose(parser, ANALYSES, arguments)
    if FOLDER not in os.environ:
        parser.error(f"{FOLDER} names the folder with the prompts; set it")
    work = Work(options.work)
    work.prepare(options.splits, Path(os.environ[FOLDER]))
    for name in options.analyses:
        own = time.process_time()
        found = {"aligned": aligned, "shifted": shifted}[name](options, work)
        seconds = sum(work.seconds.values()) + time.process_time() - own
        keep(NUMBERS, {name: {"sizes": {size: getattr(options, size) for size in SIZES}, "seconds": seconds} | found})
        print(json.dumps(found, indent=1), f"{seconds:.0f} s of the processor", sep="\n")
        work.seconds.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
