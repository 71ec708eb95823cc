"""`specframe bench`: compares contestants over prompt sets, and reports honest measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from specframe.cli.arguments import PATH, allow_env_option, json_option, no_local_code_option, split_overrides
from specframe.cli.candidates import complete_recipe
from specframe.cli.target import recipes_of, report_next
from specframe.files.text import printable

COMMANDLINE = ParameterSource.COMMANDLINE


@click.command()
@click.argument(
    "contestants",
    nargs=-1,
    metavar="CONTESTANT...",
    help="a recipe, by file or name, or NAME=RECIPE; a model; plain, hf:generate, hf:generate-compiled, "
    "hf:prompt-lookup, hf:assisted; a plugin's; KEY=VALUE, which replaces a value in every recipe; or a suite, a file "
    "of contestants and options; those given here replace its own",
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
    help="a prompt set by name, a file, or hub:owner/name:split:column; SET=N: N of its prompts; SET/TASK: a task of a "
    "published set; may be repeated (default: specframe)",
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
    "--check",
    metavar="NAME",
    help="measure the answers' quality: number, exact, similar or tests (default: the published sets' own)",
)
@click.option("--run-code", is_flag=True, help="let the check `tests` run code that a model wrote")
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
@click.option(
    "--columns",
    default="",
    metavar="A,B,..",
    help="the columns of table.md and table.tex: output, quality, tau, rate, speedup, speedup-hf, overhead, memory, "
    "alpha, efficiency, cycles",
)
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    help="where results and report go (default: runs/bench/RECIPES, runs/SUITE; the next such name where another "
    "bench is there)",
)
@click.option("--fresh", is_flag=True, help="drop the unfinished bench in DIR instead of resuming it")
@click.option(
    "--compare",
    nargs=2,
    type=PATH,
    metavar="RESULTS RESULTS",
    help="compare two results.json files; decode nothing",
)
@click.option("--report", type=PATH, metavar="DIR", help="write the report in DIR anew; decode nothing")
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
    check: str | None,
    run_code: bool,
    bound: bool,
    batch: int,
    seed: int,
    assistant: str | None,
    columns: str,
    out: Path | None,
    fresh: bool,
    compare: tuple[Path, Path] | None,
    report: Path | None,
    as_json: bool,
    no_local_code: bool,
    allow_env: bool,
) -> int:
    """Compare recipes on prompt sets with each other and with transformers' generate.

    The same command resumes an interrupted bench. The exit status is 1 if a contestant failed, or if a recipe that
    promises to be lossless gives other texts than plain decoding, by more than arithmetic.
    """
    if compare:
        return _compare(*compare)
    names = columns.split(",") if columns else []
    if report:
        return _write_again(report, names, as_json=as_json)
    from specframe.bench.contest.contestants import named_recipe
    from specframe.bench.contest.ray import Ray
    from specframe.bench.recipes import RUNS, run_bench, with_opponents
    from specframe.bench.suite import SuiteBench, find_suite, read_suite, require_sound
    from specframe.kernel.errors import InputError
    from specframe.recipes.discovery import discover

    registry = discover()
    words = [word for word in contestants if named_recipe(word, registry)]
    overrides = [word for word in split_overrides(contestants)[1] if word not in words]
    words = [word for word in contestants if word not in overrides]
    given = _given(
        {
            "vary": vary,
            "data": data,
            "limit": limit,
            "turns": turns,
            "repeats": repeats,
            "pause": pause,
            "max_new_tokens": max_new_tokens,
            "check": check,
            "run_code": run_code,
            "bound": bound,
            "batch": batch,
            "seed": seed,
            "assistant": assistant,
        }
    )
    suites = [path for word in words if (path := find_suite(word)) is not None]
    if suites:
        if len(words) > 1:
            raise InputError(f"{suites[0]} is a suite, which names its contestants; give it alone")
        benches = read_suite(suites[0], given, overrides)
    else:
        words, overrides = recipes_of(words, overrides)
        benches = {"": SuiteBench(with_opponents(words), overrides=tuple(overrides), **given)}
    if address is not None and engine != "ray":
        raise InputError("--address is that of a Ray cluster; add --engine ray")
    if engine == "ray" and any(each.pause for each in benches.values()):
        raise InputError("--pause is between the repeats of one process; leave it out with --engine ray")
    selections = {
        name: each.selection(local_code=not no_local_code, environment=allow_env) for name, each in benches.items()
    }
    if suites:
        require_sound(benches, selections)
    failed = False
    for name, each in benches.items():
        settings = each.settings()
        cluster = Ray(selections[name], settings, address).run if engine == "ray" else None
        done = run_bench(
            selections[name],
            settings,
            each.data,
            out and out / name,
            first=RUNS / suites[0].stem / name if suites else None,
            fresh=fresh,
            cluster=cluster,
            columns=names,
        )
        if turns := done.results["skipped"]["turns"]:
            print(f"{turns} later turns had become too long for the context and were left out", file=sys.stderr)
        _print(done.summary, done.folder, as_json=as_json)
        for contestant, error in done.errors.items():
            print(printable(f"{contestant} failed: {error}"), file=sys.stderr)
        failed |= bool(done.errors) or any(map(breaks_promise, done.summary["contestants"]))
    if not failed and not suites:
        report_next("bench", split_overrides(contestants)[0])
    return 1 if failed else 0


def breaks_promise(entry: Mapping[str, Any]) -> bool:
    """Returns whether a recipe's texts differ from what its verifier guarantees."""
    figures = entry["overall"]
    identity = figures["identity"] if figures else None
    return entry["kind"] == "recipe" and bool(entry["lossless"]) and bool(identity and identity["differing"])


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options given on the command line; the others are the suite's, or defaults."""
    context = click.get_current_context()
    return {name: value for name, value in options.items() if context.get_parameter_source(name) is COMMANDLINE}


def _print(summary: Mapping[str, Any], folder: Path, *, as_json: bool) -> None:
    from specframe.bench.recipes import load_reporter

    if as_json:
        print(json.dumps(summary))
    else:
        load_reporter().show(summary)
        print(printable(f"\nwritten to {folder}"))


def _write_again(folder: Path, columns: Sequence[str], *, as_json: bool) -> int:
    from specframe.bench.recipes import load_reporter

    reporter = load_reporter(columns)
    with _as_written(folder):
        results = _read(folder / "results.json")
        summary = reporter.summarise(results)
        if missing := reporter.write(results, summary, folder):
            print(printable(missing), file=sys.stderr)
        _print(summary, folder, as_json=as_json)
    return 0


def _compare(first: Path, second: Path) -> int:
    from specframe.bench.recipes import load_reporter

    with _as_written(f"{first} or {second}"):
        load_reporter().show_comparison(_read(first), _read(second))
    return 0


@contextmanager
def _as_written(place: object) -> Iterator[None]:
    """Raises InputError if results do not have the form that a bench writes."""
    from specframe.kernel.errors import InputError

    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise InputError(f"{place} is not as a bench wrote it ({problem}); run the bench again") from error


def _read(path: Path) -> dict[str, Any]:
    from specframe.files.jsonl import parse_json
    from specframe.kernel.errors import InputError

    try:
        written = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    results = parse_json(written, str(path))
    if not isinstance(results, dict):
        raise InputError(f"{path} is no results.json of a bench")
    return results
