"""`specframe train --auto MODEL`: answers, draft vocabulary, drafter, bench and recipe, in this order."""

from __future__ import annotations

import errno
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe import InputError, SpecframeError
from specframe.plugin import counted, printable
from specframe_distill.auto.progress import Expectation, progress_line
from specframe_distill.auto.sections import COPIES, LOSSES, SETTINGS, TREE, eagle, teacher

if TYPE_CHECKING:
    from collections.abc import Callable

    from specframe.plugin import Plan, PromptRecord

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk."""

LEAST = 20
"""Minimum number of different prompts."""
MEASURED = 6
"""Minimum number of prompts held out for the bench; of many prompts, a tenth is held out."""
ANSWERS, TRAINING = 0.5, 0.35
"""Shares of the time for answers and for training; the rest is for the bench. A drafter soon memorises few texts."""
SIDE_BY_SIDE = 32
"""Number of prompts answered at a time."""
FIRST = 16
"""Number of prompts answered first, to estimate the time for all."""
TEMPERATURE = 0.8
"""Temperature of further answers, which should differ from the greedy one but still be likely."""
MOST_ROUNDS = 40
"""Maximum number of answers to a prompt."""

Figures = Mapping[str, Mapping[str, Any]]
"""Measurements of contestants by name."""


@dataclass(frozen=True)
class Auto:
    """Training of a drafter for a model within minutes; each step stores its result in the folder and is done once."""

    plan: Plan
    """The plan of the model without training."""
    model: str
    overrides: Sequence[str]
    minutes: float
    folder: Path
    local_code: bool

    def run(self, records: Sequence[PromptRecord]) -> Path:
        """Returns the recipe that is fastest on the held-out prompts; an interrupted call continues when repeated.

        Raises InputError for too few prompts or minutes, and SpecframeError if the disk is full.
        """
        from specframe.plugin import writing

        learnt, measured = self.split(records)
        with writing(self.folder), self._disk_errors(), (self.folder / "log.txt").open("a", 1, encoding="utf-8") as log:
            print(
                f"{len(learnt)} prompts to learn from, {len(measured)} to measure by; {self.minutes * ANSWERS:.3g} "
                f"minutes of answers, {self.minutes * TRAINING:.3g} of training, then the bench"
            )
            write_prompts(self.folder / "learn.jsonl", learnt)
            write_prompts(self.folder / "measure.jsonl", measured)
            with progress_line(self.minutes) as show, redirect_stdout(log), redirect_stderr(log):
                answers = self._answer(len(learnt), show)
                expected = self._train(answers, show)
                show("bench")
                found = self._measure()
            return self._choose(found, expected.tau, len(measured))

    def split(self, records: Sequence[PromptRecord]) -> tuple[list[PromptRecord], list[PromptRecord]]:
        """Splits the different prompts into those for training and those for the bench."""
        different = list(dict.fromkeys(replace(each, task=None, reference=None) for each in records))
        if len(different) < LEAST:
            raise InputError(
                f"{counted(len(different), 'different prompt')}: --auto needs at least {LEAST}, {MEASURED} of them to "
                "measure"
            )
        if self.plan.settings["run"].chat is False and any(len(each.turns) > 1 for each in different):
            raise InputError(
                f"prompts of several turns need a chat template, and the tokenizer of {self.model} has none"
            )
        random.Random(0).shuffle(different)
        count = max(MEASURED, len(different) // 10)
        return different[count:], different[:count]

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Reports a full disk in one line."""
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise SpecframeError(
                f"{self.folder} cannot be written: {error.strerror}; the same command resumes from what is kept there"
            ) from error

    def _answer(self, prompts: int, show: Callable[[str], None]) -> list[Path]:
        """Returns the files of the target's answers: greedy ones, then sampled ones while time is left."""
        seconds = 60 * self.minutes * ANSWERS
        show("answers")
        expected = self._distill(0, "--limit", str(FIRST)) * prompts
        if 60 * self.minutes / 2 < expected < math.inf:
            raise InputError(
                f"--minutes {self.minutes:g} is too short: one answer to each prompt takes {expected / 60:.2g} minutes "
                f"here; give {math.ceil(2 * expected / 60)} or more, and the same folder goes on"
            )
        temperature = self.plan.settings["sampling"].temperature or TEMPERATURE
        took, rounds = self._distill(0) * prompts, 1
        spent = took
        while spent + took <= seconds and rounds < MOST_ROUNDS:
            show(f"answers, round {rounds + 1}")
            took = self._distill(rounds, f"sampling.temperature={temperature}") * prompts
            spent, rounds = spent + took, rounds + 1
        return [self.folder / "answers" / str(number) / "answers.jsonl" for number in range(rounds)]

    def _distill(self, number: int, *words: str) -> float:
        """Answers by `specframe distill-data`; returns the seconds per prompt, inf if unknown."""
        from specframe_distill.command import distill_data

        out = self.folder / "answers" / str(number)
        fixed = [f"run.batch={SIDE_BY_SIDE}", "drafter.use=none", "tree=null"]
        places = ["--prompts", str(self.folder / "learn.jsonl"), "--out", str(out), "--seed", str(number)]
        command = [self.model, *self.overrides, *fixed, *places, *words]
        with distill_data.make_context("distill-data", command) as context:
            distill_data.invoke(context)
        figures = json.loads((out / "distill.json").read_text(encoding="utf-8")).get("figures", {})
        rate = figures.get("tokens_per_second")
        return float(figures["tokens"] / rate / figures["conversations"]) if rate else math.inf

    def _train(self, answers: Sequence[Path], show: Callable[[str], None]) -> Expectation:
        """Trains the drafter by a recipe that stays in the folder; returns the prediction for it."""
        from specframe import train
        from specframe.plugin import read_plan, write_counts

        counts = self.folder / "counts.json"
        settings = SETTINGS | {
            "data": list(map(str, answers)),
            "out": str(self.folder / "drafter"),
            "cache": str(self.folder / "features"),
            "minutes": self.minutes * TRAINING,
        }
        recipe = self._write(
            "train",
            target=teacher(self.plan.recipe.data["target"]),
            drafter=eagle(counts),
            tree=TREE,
            loss=LOSSES,
            train=settings,
        )
        show("draft vocabulary")
        write_counts(read_plan(str(recipe), local_code=self.local_code), counts)
        expectation = Expectation(show)
        train(recipe, watcher=expectation, local_code=self.local_code, overrides=["run.prompts=[]", "run.costs=null"])
        return expectation

    def _measure(self) -> Figures:
        """Returns the measurements of the drafter with and without copies, of copies alone, and of plain decoding."""
        from specframe import bench

        trained = eagle(self.folder / "counts.json") | {"weights": str(self.folder / "drafter")}
        self._write("eagle", drafter=trained, tree=TREE)
        self._write("eagle-suffix", drafter={"use": "fused", "first": trained, "second": COPIES, "tree": TREE})
        self._write("suffix", drafter=COPIES)
        names = [str(self.folder / f"{name}.yaml") for name in ("eagle", "eagle-suffix", "suffix")]
        data, out = str(self.folder / "measure.jsonl"), self.folder / "bench"
        report = bench([*names, "plain"], data=data, out=out, local_code=self.local_code)
        for name, error in report.errors.items():
            raise SpecframeError(f"{name} cannot be measured: {error}")
        return {e["name"]: e["overall"] for e in report.summary["contestants"] if e["kind"] == "recipe"}

    def _choose(self, found: Figures, expected: float, prompts: int) -> Path:
        """Writes the recipe of the fastest contestant with its measurements, prints these, and returns the file."""
        best = max(found, key=lambda name: found[name]["speedup"]["value"])
        speedup, tau = (interval(found[best][figure]) for figure in ("speedup", "tau"))
        lines = [f"tau {tau}, {speedup} times as fast as plain decoding, on {prompts} prompts held out"]
        if best == "suffix":
            lines.append("the trained drafter does not pay: this is the drafter that copies from the text, alone")
        if not (found[best]["speedup"]["low"] or 0) > 1:
            lines.append("the interval is not above 1: more prompts or minutes are needed to know")
        text = (self.folder / f"{best}.yaml").read_text(encoding="utf-8")
        recipe = self.folder / "recipe.yaml"
        recipe.write_text("".join(f"# {line}\n" for line in lines) + text, encoding="utf-8")
        print(f"the law expected tau {expected:.2f} of the drafter; it has {interval(found['eagle']['tau'])}")
        print(
            printable(
                "\n".join([*(f"{name}: {interval(each['speedup'])} times" for name, each in found.items()), *lines])
            )
        )
        return recipe

    def _write(self, name: str, **sections: Any) -> Path:
        """Writes a recipe to the folder: the model's own, with other sections."""
        import yaml

        path = self.folder / f"{name}.yaml"
        data = deepcopy(self.plan.recipe.data) | {"tree": None, **sections}
        path.write_text(yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=100), encoding="utf-8")
        return path


def auto(
    plan: Plan,
    model: str,
    overrides: Sequence[str],
    prompts: Path | None,
    minutes: float | None,
    out: Path | None,
    local_code: bool,
) -> Path:
    """Returns the recipe that `train --auto` writes. Raises InputError for options that it cannot use."""
    from specframe.plugin import read_records

    if prompts is None or minutes is None:
        raise InputError("--auto needs --prompts FILE and --minutes N")
    if not 0 < minutes < math.inf:
        raise InputError(f"--minutes must be above 0, not {minutes:g}")
    folder = out or Path("runs") / "auto" / Path(model).name.removesuffix(".gguf")
    return Auto(plan, model, overrides, minutes, folder, local_code).run(read_records(prompts))


def write_prompts(path: Path, records: Sequence[PromptRecord]) -> None:
    """Writes prompts as JSONL."""
    text = "".join(json.dumps({"turns": list(record.turns)}) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")


def interval(figure: Mapping[str, float | None]) -> str:
    """Formats a measurement with its interval, if it has one."""
    within = f" [{figure['low']:.2f}, {figure['high']:.2f}]" if figure["low"] is not None else ""
    return f"{figure['value']:.2f}{within}"
