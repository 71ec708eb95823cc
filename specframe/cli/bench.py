"""`specframe bench`: many contestants side by side over prompt sets, and honest figures of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import PATH, allow_env_option, json_option, no_local_code_option, split_overrides
from specframe.cli.candidates import complete_recipe
from specframe.cli.target import recipes_of
from specframe.files.text import counted, open_console, printable

if TYPE_CHECKING:
    from specframe.bench.contest.contest import Contest
    from specframe.bench.contest.contestants import Selection
    from specframe.bench.contest.engines import RoundRunner
    from specframe.bench.contest.runner import Step
    from specframe.bench.contest.settings import Terms
    from specframe.bench.figures.journal import Journal

OPPONENTS = ("plain", "hf:generate")
"""The contestants that join the recipes where no others are named: speedups are measured against them."""


@click.command()
@click.argument(
    "contestants",
    nargs=-1,
    metavar="CONTESTANT...",
    help="a recipe, by file or name; a model; plain, hf:generate, hf:generate-compiled, hf:prompt-lookup, hf:assisted; "
    "a plugin's contestant; or KEY=VALUE, which replaces a value in every recipe",
    shell_complete=complete_recipe,
)
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=A,B,..",
    help="measure every recipe with each of these values; may be repeated, for all combinations that are valid",
)
@click.option(
    "--data",
    multiple=True,
    metavar="SET",
    help="a prompt set by name, a file, or hub:owner/name:split:column; may be repeated (default: specframe)",
)
@click.option("--limit", type=int, metavar="N", help="only N prompts of all sets together, spread over their tasks")
@click.option("--turns", default=1, metavar="N", help="decode up to N turns of a conversation")
@click.option("--repeats", default=3, metavar="N", help="decode everything N times")
@click.option(
    "--pause",
    default=0.0,
    metavar="SECONDS",
    help="wait between repeats, to sample more of a shared machine's load variation",
)
@click.option("--max-new-tokens", type=int, metavar="N", help="new tokens per answer, at most (default: the recipe's)")
@click.option(
    "--engine",
    type=click.Choice(["inprocess", "ray"]),
    default="inprocess",
    help="where to decode: in this process, or on workers of a Ray cluster, each with rounds of its own",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    help="a running Ray cluster: auto or HOST:PORT (default: start one here for this bench)",
)
@click.option(
    "--bound",
    is_flag=True,
    help="report the first level's acceptance by the best possible verifier, too (decodes each prompt once more)",
)
@click.option("--batch", default=1, metavar="B", help="decode B prompts together")
@click.option("--seed", default=0, metavar="N", help="seed of the prompts' choice and order and of all sampling")
@click.option(
    "--assistant", metavar="MODEL", help="the assistant model of hf:assisted: a folder, a Hub name or zoo://NAME"
)
@click.option("--out", type=PATH, default="runs/bench", metavar="DIR", help="where results and report go")
@click.option("--fresh", is_flag=True, help="drop the unfinished bench in DIR instead of resuming it")
@click.option(
    "--compare",
    nargs=2,
    type=PATH,
    metavar="RESULTS RESULTS",
    help="compare two results.json files; decode nothing",
)
@json_option("print the summary as one JSON object on the last line")
@no_local_code_option
@allow_env_option
def bench(
    contestants: Sequence[str],
    vary: Sequence[str],
    data: Sequence[str],
    limit: int | None,
    turns: int,
    repeats: int,
    pause: float,
    max_new_tokens: int | None,
    engine: str,
    address: str | None,
    bound: bool,
    batch: int,
    seed: int,
    assistant: str | None,
    out: Path,
    fresh: bool,
    compare: tuple[Path, Path] | None,
    as_json: bool,
    no_local_code: bool,
    allow_env: bool,
) -> int:
    """Measure recipes side by side over prompt sets, against transformers' own generation.

    The same command resumes an interrupted bench. The exit status is 1 if a contestant failed.
    """
    if compare:
        return _compare(*compare)
    from specframe.bench.contest.contestants import Selection
    from specframe.bench.contest.datasets import SHIPPED
    from specframe.bench.contest.ray import Ray
    from specframe.bench.contest.settings import Terms
    from specframe.kernel.errors import InputError

    terms = Terms(batch=batch, repeats=repeats, seed=seed, turns=turns, limit=limit, pause=pause, bound=bound)
    words, overrides = recipes_of(*split_overrides(contestants))
    if max_new_tokens is not None:
        overrides.append(f"sampling.max_new_tokens={max_new_tokens}")
    selection = Selection(
        _with_opponents(words), tuple(overrides), assistant, not no_local_code, tuple(vary), allow_env
    )
    if address is not None and engine != "ray":
        raise InputError("--address is that of a Ray cluster; add --engine ray")
    if pause and engine == "ray":
        raise InputError("--pause is between the repeats of one process; leave it out with --engine ray")
    cluster = Ray(selection, terms, address) if engine == "ray" else None
    sets = list(data) or [SHIPPED]
    with ExitStack() as held:
        contest = _prepare(selection, terms, sets, out, held)
        results = _run(contest, cluster, sets, out, fresh=fresh)
        _report(results, out, as_json=as_json)
    for name, error in contest.errors.items():
        print(printable(f"{name} failed: {error}"), file=sys.stderr)
    return 1 if contest.errors else 0


def _with_opponents(words: list[str]) -> tuple[str, ...]:
    """The contestants; where all are recipes, those that they are measured against, too."""
    from specframe.bench.contest.contestants import is_recipe
    from specframe.kernel.discovery import discover

    registry = discover()
    return (*words, *(OPPONENTS if words and all(is_recipe(word, registry) for word in words) else ()))


def _prepare(selection: Selection, terms: Terms, sets: list[str], out: Path, held: ExitStack) -> Contest:
    """The loaded contest; the folder of the results is held from here on.

    All that can be checked is checked before models load.
    """
    from specframe.bench.contest.contest import Contest
    from specframe.bench.contest.contestants import plan_roster
    from specframe.bench.contest.datasets import read_sets
    from specframe.files.folders import writing
    from specframe.kernel.discovery import discover

    roster = plan_roster(selection, discover())
    for name, why in roster.misfits.items():
        print(printable(f"{name} takes no part: {why}"), file=sys.stderr)
    questions = read_sets(sets)
    held.enter_context(writing(out))
    roster.load(terms.batch)
    contest = Contest(roster, terms)
    contest.choose(questions)
    if contest.skipped:
        print(f"{counted(contest.skipped, 'prompt')} too long for the context: left out", file=sys.stderr)
    return contest


def _run(contest: Contest, cluster: RoundRunner | None, sets: list[str], out: Path, *, fresh: bool) -> dict[str, Any]:
    """The results, written to the folder; what a journal there holds already is not decoded again."""
    from specframe.bench.contest.engines import InProcess
    from specframe.bench.figures.journal import Journal
    from specframe.bench.figures.results import collect, describe_bench
    from specframe.files.provenance import write_json

    journal = Journal.open(out, describe_bench(contest, sets), fresh=fresh)
    if journal.rounds:
        print(f"resuming after {len(journal.rounds)} of {len(contest.rounds)} rounds", file=sys.stderr)
    try:
        with progress(contest, journal) as listener:
            contest.run(journal, cluster or InProcess(contest.runner), listener)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {out} keeps {len(journal.rounds)} of {len(contest.rounds)} rounds, "
            "and the same command resumes"
        ) from None
    results = collect(contest, journal, sets)
    write_json(out / "results.json", results)
    return results


def _report(results: dict[str, Any], out: Path, *, as_json: bool) -> None:
    from specframe.bench.figures.summary import summarise
    from specframe.bench.report import NO_PLOTS, can_draw, write_report
    from specframe.bench.table import print_table

    summary = summarise(results)
    write_report(results, summary, out)
    if turns := results["skipped"]["turns"]:
        print(f"{turns} later turns had become too long for the context and were left out", file=sys.stderr)
    if not can_draw():
        print(NO_PLOTS, file=sys.stderr)
    if as_json:
        print(json.dumps(summary))
    else:
        print_table(summary)
        print(printable(f"\nwritten to {out}"))


def _compare(first: Path, second: Path) -> int:
    from specframe.bench.figures.comparison import compare, print_comparison
    from specframe.kernel.errors import InputError

    try:
        found = compare(_read(first), _read(second))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise InputError(f"{first} or {second} is not as a bench wrote it ({problem}); run the bench again") from error
    print_comparison(found)
    return 0


def _read(path: Path) -> dict[str, Any]:
    from specframe.files.jsonl import parse
    from specframe.kernel.errors import InputError

    try:
        written = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    results = parse(written, str(path))
    if not isinstance(results, dict):
        raise InputError(f"{path} is no results.json of a bench")
    return results


@contextmanager
def progress(contest: Contest, journal: Journal) -> Iterator[Callable[[Step], None]]:
    """A listener to the contest's steps that shows a bar on standard error, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    entrants = contest.roster.entrants
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
