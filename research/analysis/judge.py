"""Quality and tau of lossy rules: ``python research/analysis/judge.py measure RECIPE SET VERIFIER ... --out FILE``.

``python research/analysis/judge.py sums --count 240 --seed 1 > mine.jsonl`` writes questions to mine a head on, and
``sums --seed 909 --besides mine.jsonl > sums.jsonl`` others to measure it on. A SET is a file with answers or a set of
`specframe bench`; every VERIFIER is a recipe's section, such as ``"{use: surprise, limit: 2}"``. All decode the same
questions with the recipe's drafter, `match` first, a part of the questions at a time. What is measured is appended to
FILE; the same command goes on with the rest, and ends with a line of figures each. Nothing is timed: none of these
figures depends on the machine's load. ``show sums=FILE humaneval=FILE`` keeps the figures in judge.json, and makes the
picture and the tables of docs/methods/judge.md of them; without a FILE it makes them of what is kept. ``sums-10=FILE``
is for sums with ``--override tree.depth=10``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure
from sample import fill, table
from sums import sums

import specframe
from specframe import Pipeline
from specframe.bench.contest.datasets import Question, read_questions
from specframe.certify.guarantees import Departure
from specframe.plugin import find_check
from specframe_report.plots import COLOURS, MARKERS, STYLE, WIDTH
from specframe_report.quality import paired_interval

MATCH = "{use: match}"
KEPT = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "methods" / "judge.md"
PICTURE = DOCS / "pictures" / "judge.svg"
RULES = {"judge": "threshold", "surprise": "limit"}
"""The rules with the option that is varied."""
TITLES = {"sums": "two-step sums", "sums-10": "the same, chains of ten", "humaneval": "HumanEval"}
LOSS, GAIN = -2.0, 1.25
"""The aim: at most so many points lost, at so many times the tau of `match`."""


@dataclass
class Decoded(Departure):
    """The same with the qualities of the answers."""

    qualities: list[float] = field(default_factory=list)

    def extend(self, other: Decoded) -> None:
        """Adds another part of the questions."""
        self.cycles, self.tokens = self.cycles + other.cycles, self.tokens + other.tokens
        self.others, self.nats = self.others + other.others, self.nats + other.nats
        self.qualities += other.qualities


def decode(pipeline: Pipeline, questions: Sequence[Question], run_code: bool) -> Decoded:
    """Decodes questions, and checks their answers."""
    found = Decoded()
    requests = pipeline.requests([pipeline.encode(question.turns[0]) for question in questions])
    with pipeline.open(requests) as session:
        entries = session.run(requests, found.add)
    for question, entry in zip(questions, entries, strict=True):
        check = find_check(question.check or "number", run_code=run_code)
        found.qualities.append(check(pipeline.decode(entry.tokens), question.turns[0], question.reference))
    return found


def measure(asked: argparse.Namespace) -> None:
    """Decodes what the file does not hold yet, part by part, each contestant in turn."""
    questions = read_questions([asked.set], asked.check)[: asked.limit]
    done = {(line["contestant"], line["first"]) for line in read(asked.out)}
    first = specframe.load(asked.recipe, overrides=[*asked.override, f"verifier={MATCH}"])
    parts = first.parts
    pipelines = {
        name: specframe.compose(
            target=parts.target,
            drafter=parts.drafter,
            tree=parts.tree,
            verifier=yaml.safe_load(name),
            sampling=first.sampling,
            run=first.run,
        )
        for name in dict.fromkeys((MATCH, *asked.verifiers))
    }
    for start in range(0, len(questions), asked.part):
        for name, pipeline in pipelines.items():
            if (name, start) not in done:
                found = decode(pipeline, questions[start : start + asked.part], asked.run_code)
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"contestant": name, "first": start, **asdict(found)}) + "\n")
    for figures in summarise(read(asked.out)):
        print(json.dumps(figures))


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of measurements; none where there is none."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def summarise(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The figures of each contestant, next to `match` on the parts that it has decoded."""
    parts: dict[str, dict[int, Decoded]] = {}
    for line in lines:
        place = {name: value for name, value in line.items() if name not in ("contestant", "first")}
        parts.setdefault(line["contestant"], {})[line["first"]] = Decoded(**place)
    for name, found in parts.items():
        ours, plain = Decoded(), Decoded()
        for start in sorted(found):
            ours.extend(found[start])
            plain.extend(parts[MATCH][start])
        change = paired_interval(np.array(ours.qualities) - np.array(plain.qualities))
        tau, base = ours.tokens / ours.cycles, plain.tokens / plain.cycles
        yield {
            "contestant": name,
            "questions": len(ours.qualities),
            "right": sum(ours.qualities),
            "plain": sum(plain.qualities),
            "change": change and change.as_dict(),
            "tau": tau,
            "ratio": tau / base,
            "others": ours.others / ours.tokens,
            "nats": ours.nats / ours.tokens,
        }


def show(numbers: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Draws the figure, and fills the page's tables, of the sets that there are numbers for."""
    with rc_context(STYLE):
        draw(numbers).savefig(PICTURE, metadata={"Date": None})
    page = PAGE.read_text(encoding="utf-8")
    for name, text in write_tables(numbers):
        page = fill(page, name, text)
    PAGE.write_text(page, encoding="utf-8")


def draw(numbers: Mapping[str, Sequence[dict[str, Any]]]) -> Figure:
    """A panel per set: the change of quality against tau, a line per rule, the region of the aim shaded."""
    sets = [name for name in TITLES if name in numbers]
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False, sharex=True, sharey=True)[0]
    for axes, name in zip(panels, sets, strict=True):
        for number, rule in enumerate(RULES):
            found = sorted((each for each in numbers[name] if rule_of(each)[0] == rule), key=lambda each: each["ratio"])
            if found:
                values, lows, highs = zip(*(points(each) for each in found), strict=True)
                errors = [[v - low for v, low in zip(values, lows, strict=True)]]
                errors.append([high - v for v, high in zip(values, highs, strict=True)])
                look: dict[str, Any] = {"color": COLOURS[1 + number], "marker": MARKERS[number], "capsize": 2}
                axes.errorbar([each["ratio"] for each in found], values, yerr=errors, label=f"`{rule}`", **look)
        axes.plot([1], [0], "k*", label="`match`")
        axes.set(title=TITLES[name], xlabel="tau, times `match`'s")
    panels[0].autoscale_view()
    (left, right), (bottom, top) = panels[0].get_xlim(), panels[0].get_ylim()
    for axes in panels:
        axes.fill_between([GAIN, right], LOSS, top, color="0.93", zorder=0, linewidth=0)
        axes.axhline(0, color="0.5", linewidth=0.8, zorder=0)
        axes.set(xlim=(left, right), ylim=(bottom, top))
    panels[0].set_ylabel("change of right answers, points")
    panels[0].legend()
    return figure


def write_tables(numbers: Mapping[str, Sequence[dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    """The table of each set, with its name."""
    heads = ["verifier", "right", "change, points", "tau", "times `match`'s", "not the target's choice", "nats a token"]
    for name in TITLES:
        if name in numbers:
            yield name, table(heads, [write_row(each) for each in sorted(numbers[name], key=_order)])


def write_row(each: dict[str, Any]) -> list[str]:
    """A contestant's figures."""
    rule, value = rule_of(each)
    right, tau = f"{each['right']:.0f} of {each['questions']}", f"{each['tau']:.2f}"
    if rule == "match":
        return ["`match`", right, "", tau, "1", "none", "0"]
    middle, low, high = points(each)
    return [
        f"`{rule}`, {RULES[rule]} {value:g}",
        right,
        f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]",
        tau,
        f"{each['ratio']:.2f}",
        f"{each['others']:.1%}",
        f"{each['nats']:.2f}",
    ]


def rule_of(each: dict[str, Any]) -> tuple[str, float]:
    """The contestant's rule, and the value of its option; 0 where there is none."""
    section = yaml.safe_load(each["contestant"])
    return section["use"], float(section.get(RULES.get(section["use"], ""), 0.0))


def points(each: dict[str, Any]) -> tuple[float, float, float]:
    """The change of quality with its interval, in points."""
    change = each["change"]
    return 100 * change["value"], 100 * change["low"], 100 * change["high"]


def _order(each: dict[str, Any]) -> tuple[int, float]:
    rule, value = rule_of(each)
    return ("match", *RULES).index(rule), -value if rule == "judge" else value


def main() -> None:
    """Writes questions, measures, or draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("sums")
    write.add_argument("--count", type=int, default=200)
    write.add_argument("--seed", type=int, default=909)
    write.add_argument("--besides", type=Path, help="a file of questions to leave out")
    run = commands.add_parser("measure")
    run.add_argument("recipe")
    run.add_argument("set")
    run.add_argument("verifiers", nargs="*")
    run.add_argument("--out", type=Path, required=True, help="where measurements go")
    run.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="an override of the recipe")
    run.add_argument("--check", help="the check of answers, for a file")
    run.add_argument("--run-code", action="store_true", help="let the check `tests` run code that a model wrote")
    run.add_argument("--limit", type=int, help="only the first questions")
    run.add_argument("--part", type=int, default=50, help="questions that each contestant decodes in turn")
    made = commands.add_parser("show")
    made.add_argument("files", nargs="*", metavar="SET=FILE")
    asked = parser.parse_args()
    if asked.command == "sums":
        known = {line["question"] for line in read(asked.besides)} if asked.besides else set()
        fresh = [line for line in sums(asked.count + len(known), asked.seed) if line["question"] not in known]
        print("\n".join(json.dumps(line) for line in fresh[: asked.count]))
    elif asked.command == "measure":
        measure(asked)
    else:
        kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
        for name, _, file in (given.partition("=") for given in asked.files):
            kept[name] = list(summarise(read(Path(file))))
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        show(kept)


if __name__ == "__main__":
    main()
