"""A bench of recipes: compares contestants over prompt sets and writes a report."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specframe.bench.contest.contest import Contest, InProcess, RunRounds
from specframe.bench.contest.contestants import (
    GENERATE,
    PLAIN,
    Contestants,
    Selection,
    is_recipe,
    named_recipe,
    plan_contestants,
)
from specframe.bench.contest.datasets import SHIPPED, read_sets
from specframe.bench.contest.runner import Step
from specframe.bench.contest.settings import ContestSettings, Variant
from specframe.bench.journal import Journal, another, find_folder
from specframe.bench.results import collect, describe_bench
from specframe.files.folders import writing
from specframe.files.provenance import write_json
from specframe.files.text import counted, open_console, printable, render_table
from specframe.kernel.errors import needs_extra
from specframe.recipes.discovery import discover

if TYPE_CHECKING:
    from pandas import DataFrame

OPPONENTS = (PLAIN, GENERATE)
"""The baselines that are added to a bench of recipes only: speedups are measured against them."""
RUNS = Path("runs")
"""The default folder of results."""
NAMED = 3
"""Largest number of recipes in the name of a bench's folder."""


class Reporter(Protocol):
    """Computes a bench's figures and writes the report: the extension `report`."""

    def summarise(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The figures of every contestant with their intervals, as plain data."""

    def write(self, results: Mapping[str, Any], summary: Mapping[str, Any], folder: Path) -> str | None:
        """Writes page, tables and plots into the folder; returns a sentence about missing ones, or None."""

    def table(self, summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """The comparison table: the columns' names, and a row of texts per contestant."""

    def show(self, summary: Mapping[str, Any]) -> None:
        """Prints the comparison table."""

    def show_comparison(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Prints the changes between two benches' results."""


def load_reporter(columns: Sequence[str] = ()) -> Reporter:
    """The reporter of the package specframe-report, its tables with these columns, or with the usual ones.

    Raises PluginError without the package, InputError for an unknown column.
    """
    reporter: Reporter = discover().extension("report", "specframe bench", "specframe-report")(columns)
    return reporter


@dataclass(frozen=True)
class BenchReport:
    """The outcome of a bench."""

    summary: dict[str, Any] = field(repr=False)
    """Figures with their intervals: of all prompts, by task and by set, for each contestant."""
    results: dict[str, Any] = field(repr=False)
    """Every single run, settings, seeds and versions, as in results.json."""
    folder: Path
    """Folder of results.json, report.md, tables and plots."""
    errors: Mapping[str, str]
    """Contestants that failed, and why."""

    def _repr_html_(self) -> str:
        """The comparison table as HTML, for notebooks."""
        return render_table(*load_reporter().table(self.summary), caption=str(self.folder))

    def to_pandas(self) -> DataFrame:
        """Every figure of figures.csv: a row for each contestant, group of prompts and figure, with its interval.

        Raises InputError without pandas.
        """
        with needs_extra("pandas", "to_pandas"):
            import pandas as pd
        return pd.read_csv(self.folder / "figures.csv")


def bench(
    contestants: str | Sequence[str],
    *,
    overrides: Sequence[str] = (),
    vary: Sequence[str] = (),
    data: str | Sequence[str] = SHIPPED,
    limit: int | None = None,
    turns: int = 1,
    repeats: int = 3,
    batch: int = 1,
    seed: int = 0,
    check: str | None = None,
    run_code: bool = False,
    assistant: str | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    local_code: bool = True,
) -> BenchReport:
    """Measures recipes side by side as `specframe bench` does; the same call resumes an interrupted bench.

    Args:
        contestants: recipes by file or name, also as `NAME=RECIPE`, plain, hf:generate, or another contestant; where
            all are recipes, plain decoding and `generate` join them.
        overrides: `key=value` texts that replace values of every recipe.
        vary: `key=a,b,...` texts: every recipe with each of these values.
        data: prompt sets by name, file, or hub:owner/name:split:column.
        limit: only this many prompts of all sets together, spread over their tasks.
        turns: decode up to this many turns of a conversation.
        repeats: decode everything this many times.
        batch: prompts that are decoded together.
        seed: seeds the prompts' choice and order and all sampling.
        check: the check of all answers: number, exact, similar or tests; without one, each set's own.
        run_code: let the check `tests` run code that a model wrote.
        assistant: the assistant model of hf:assisted.
        out: the folder of results and report; default: `runs/bench/` plus the recipes' names, and a number if
            another bench is there.
        fresh: drop the unfinished bench in `out` instead of resuming it.
        local_code: allow components from `./file.py:Name`.

    Raises RecipeError for an invalid recipe, InputError for prompts or settings that cannot be used.
    """
    names = [contestants] if isinstance(contestants, str) else list(contestants)
    sets = [data] if isinstance(data, str) else list(data)
    selection = Selection(with_opponents(names), tuple(overrides), assistant, local_code, tuple(vary), False)
    settings = ContestSettings(
        batch=batch, repeats=repeats, seed=seed, turns=turns, limit=limit, check=check, run_code=run_code
    )
    return run_bench(selection, settings, sets, None if out is None else Path(out), fresh=fresh)


def with_opponents(names: Sequence[str]) -> tuple[str | Variant, ...]:
    """The contestants, with `NAME=RECIPE` parsed; if all are recipes, with the baselines added."""
    registry = discover()
    words = tuple(named_recipe(name, registry) or name for name in names)
    alone = bool(words) and all(isinstance(word, Variant) or is_recipe(word, registry) for word in words)
    return (*words, *(OPPONENTS if alone else ()))


def run_bench(
    selection: Selection,
    settings: ContestSettings,
    sets: Sequence[str],
    out: Path | None,
    *,
    first: Path | None = None,
    fresh: bool = False,
    cluster: RunRounds | None = None,
    columns: Sequence[str] = (),
) -> BenchReport:
    """Runs the rounds that a journal in the folder does not hold yet, and writes results and report.

    Without `out`, the folder is `first`, or one named after the recipes, with a number if it holds another bench.
    Errors are detected before models load, if possible. Remarks and progress go to standard error.
    """
    reporter = load_reporter(columns)
    planned = plan_contestants(selection, discover())
    for name, why in planned.misfits.items():
        _report(f"{name} takes no part: {why}")
    chosen = read_sets(sets, settings.check)
    identity = describe_bench(planned, settings, sets, chosen)
    out = out or find_folder(first or RUNS / "bench" / _name(planned), identity)
    with writing(out):
        journal = Journal.open(out, identity, fresh=fresh)
        planned.load(settings.batch)
        contest = Contest(planned, settings)
        contest.choose(chosen)
        if contest.skipped:
            _report(f"{counted(contest.skipped, 'prompt')} too long for the context: left out")
        results = _run(contest, cluster, sets, out, journal)
        summary = reporter.summarise(results)
        if missing := reporter.write(results, summary, out):
            _report(missing)
    return BenchReport(summary, results, out, contest.errors)


def _name(planned: Contestants) -> str:
    """A folder's name after the recipes."""
    names = [entrant.name for entrant in planned.entrants if entrant.kind == "recipe"]
    more = [f"and-{len(names) - NAMED}"] if len(names) > NAMED else []
    return "-".join(re.sub(r"[^\w.=-]+", "-", name).strip("-.") for name in [*names[:NAMED], *more])[:100]


def _run(
    contest: Contest, cluster: RunRounds | None, sets: Sequence[str], out: Path, journal: Journal
) -> dict[str, Any]:
    """Writes the results to the folder and returns them; rounds in the journal are not decoded again."""
    if not {(entry["repeat"], tuple(entry["prompts"])) for entry in journal.rounds} <= {r.key for r in contest.rounds}:
        raise another(out)  # the models, whose contexts decide about prompts, are others
    if journal.rounds:
        _report(f"resuming after {len(journal.rounds)} of {len(contest.rounds)} rounds")
    try:
        with _progress(contest, journal) as listener:
            contest.run(journal, cluster or InProcess(contest.runner).run, listener)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {out} keeps {len(journal.rounds)} of {len(contest.rounds)} rounds, "
            "and the same command resumes"
        ) from None
    results = collect(contest, journal, sets)
    write_json(out / "results.json", results)
    return results


def _report(text: str) -> None:
    print(printable(text), file=sys.stderr)


@contextmanager
def _progress(contest: Contest, journal: Journal) -> Iterator[Callable[[Step], None]]:
    """A listener to the contest's steps that shows a progress bar if standard error is a terminal."""
    entrants = contest.contestants.entrants
    tokens = dict.fromkeys((entrant.name for entrant in entrants), 0)
    seconds = dict.fromkeys(tokens, 0.0)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rates]}", markup=False),
    )
    console = open_console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        total = sum(each.turns for each in contest.rounds) * len(entrants)
        left = sum(each.turns for each in contest.remaining(journal)) * len(entrants)
        task = bar.add_task("bench", total=total, completed=total - left, rates="warming up")

        def listen(step: Step) -> None:
            tokens[step.contestant] += step.tokens
            seconds[step.contestant] += step.seconds
            rates = "  ".join(f"{printable(n)} {tokens[n] / seconds[n]:.0f}" for n in tokens if seconds[n])
            bar.update(task, advance=1, rates=f"tokens/s: {rates}")
            if step.error is not None:
                bar.console.print(printable(f"{step.contestant} failed: {step.error}"))

        yield listen
