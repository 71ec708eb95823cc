"""`specframe bench`: many contestants side by side over prompt sets, and honest figures of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe.files.text import counted, open_console, printable

if TYPE_CHECKING:
    from specframe.bench.contest.contest import Contest
    from specframe.bench.contest.engines import RoundRunner
    from specframe.bench.contest.runner import Step
    from specframe.bench.figures.journal import Journal

SUMMARY = "measure recipes side by side over prompt sets, against transformers' own generation"
OPPONENTS = ("plain", "hf:generate")
"""The contestants that join the recipes where no others are named: speedups are measured against them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_environment_argument, as_path

    parser.add_argument(
        "contestants",
        nargs="*",
        metavar="CONTESTANT",
        help="a recipe, by file or name; plain, hf:generate, hf:generate-compiled, hf:prompt-lookup or hf:assisted; "
        "a plugin's contestant; or KEY=VALUE, which replaces a value in every recipe",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B,..",
        help="measure every recipe with each of these values; may be repeated, for all combinations that are valid",
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="SET",
        help="a prompt set by name, a file, or hub:owner/name:split:column; may be repeated (default: specframe)",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="only N prompts of all sets together, spread over their tasks"
    )
    parser.add_argument(
        "--turns", type=int, default=1, metavar="N", help="decode up to N turns of a conversation (default: 1)"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="decode everything N times (default: 3)")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait between repeats, to sample more of a shared machine's load variation (default: 0)",
    )
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="new tokens per answer, at most (default: the recipe's)"
    )
    parser.add_argument(
        "--engine",
        choices=("inprocess", "ray"),
        default="inprocess",
        help="where to decode: in this process, or on workers of a Ray cluster, each with rounds of its own",
    )
    parser.add_argument(
        "--address", help="a running Ray cluster: auto or HOST:PORT (default: start one here for this bench)"
    )
    parser.add_argument(
        "--bound",
        action="store_true",
        help="report the first level's acceptance by the best possible verifier, too (decodes each prompt once more)",
    )
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="decode B prompts together (default: 1)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the prompts' choice and order and of all sampling (default: 0)",
    )
    parser.add_argument(
        "--assistant", metavar="MODEL", help="the assistant model of hf:assisted: a folder, a Hub name or zoo://NAME"
    )
    parser.add_argument(
        "--out",
        type=as_path,
        default=Path("runs/bench"),
        metavar="DIR",
        help="where results and report go (default: runs/bench)",
    )
    parser.add_argument("--fresh", action="store_true", help="drop the unfinished bench in DIR instead of resuming it")
    parser.add_argument(
        "--compare", nargs=2, type=as_path, metavar="RESULTS", help="compare two results.json files; decode nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object on the last line")
    parser.add_argument("--no-local-code", action="store_true", help="refuse components from ./file.py:Name")
    add_environment_argument(parser)
    parser.set_defaults(overrides=[])


def execute(options: argparse.Namespace) -> int:
    """Runs the bench, or what is left of it, and writes and prints its results; 1 if a contestant failed."""
    if options.compare:
        return _compare(*options.compare)
    with ExitStack() as held:
        return _run(options, held)


def _run(options: argparse.Namespace, held: ExitStack) -> int:
    contest, engine, sets = _prepare(options, held)
    from specframe.bench.figures.journal import Journal
    from specframe.bench.figures.results import collect, describe_bench
    from specframe.files.provenance import write_json

    journal = Journal.open(options.out, describe_bench(contest, sets), fresh=options.fresh)
    if journal.rounds:
        print(f"resuming after {len(journal.rounds)} of {len(contest.rounds)} rounds", file=sys.stderr)
    try:
        with progress(contest, journal) as listener:
            contest.run(journal, engine, listener)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {options.out} keeps {len(journal.rounds)} of {len(contest.rounds)} rounds, "
            "and the same command resumes"
        ) from None
    results = collect(contest, journal, sets)
    write_json(options.out / "results.json", results)
    _report(results, options)
    for name, error in contest.errors.items():
        print(printable(f"{name} failed: {error}"), file=sys.stderr)
    return 1 if contest.errors else 0


def _prepare(options: argparse.Namespace, held: ExitStack) -> tuple[Contest, RoundRunner, list[str]]:
    """The loaded contest, its engine and the names of its sets; the folder of the results is held from here on.

    All that can be checked is checked before models load.
    """
    from specframe.bench.contest.contest import Contest
    from specframe.bench.contest.contestants import Selection, is_recipe, plan_roster
    from specframe.bench.contest.datasets import SHIPPED, read_sets
    from specframe.bench.contest.engines import InProcess
    from specframe.bench.contest.ray import Ray
    from specframe.bench.contest.settings import Terms
    from specframe.files.folders import writing
    from specframe.kernel.discovery import discover
    from specframe.kernel.errors import InputError

    terms = Terms(
        batch=options.batch,
        repeats=options.repeats,
        seed=options.seed,
        turns=options.turns,
        limit=options.limit,
        pause=options.pause,
        bound=options.bound,
    )
    given = [*options.contestants, *options.overrides]
    words = [word for word in given if not _is_override(word)]
    registry = discover()
    if words and all(is_recipe(word, registry) for word in words):
        words += OPPONENTS
    overrides = [word for word in given if _is_override(word)]
    if options.max_new_tokens is not None:
        overrides.append(f"sampling.max_new_tokens={options.max_new_tokens}")
    selection = Selection(
        tuple(words),
        tuple(overrides),
        options.assistant,
        not options.no_local_code,
        tuple(options.vary),
        options.allow_env,
    )
    roster = plan_roster(selection, registry)
    for name, why in roster.misfits.items():
        print(printable(f"{name} takes no part: {why}"), file=sys.stderr)
    if options.address is not None and options.engine != "ray":
        raise InputError("--address is that of a Ray cluster; add --engine ray")
    if options.pause and options.engine == "ray":
        raise InputError("--pause is between the repeats of one process; leave it out with --engine ray")
    cluster = Ray(selection, terms, options.address) if options.engine == "ray" else None
    sets = options.data or [SHIPPED]
    questions = read_sets(sets)
    held.enter_context(writing(options.out))
    roster.load(terms.batch)
    contest = Contest(roster, terms)
    contest.choose(questions)
    if contest.skipped:
        print(f"{counted(contest.skipped, 'prompt')} too long for the context: left out", file=sys.stderr)
    return contest, cluster or InProcess(contest.runner), sets


def _is_override(word: str) -> bool:
    return "=" in word and not Path(word).is_file()


def _report(results: dict[str, Any], options: argparse.Namespace) -> None:
    from specframe.bench.figures.summary import summarise
    from specframe.bench.report import NO_PLOTS, can_draw, write_report
    from specframe.bench.table import print_table

    summary = summarise(results)
    write_report(results, summary, options.out)
    if turns := results["skipped"]["turns"]:
        print(f"{turns} later turns had become too long for the context and were left out", file=sys.stderr)
    if not can_draw():
        print(NO_PLOTS, file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    else:
        print_table(summary)
        print(printable(f"\nwritten to {options.out}"))


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
