"""`specframe bench`: many contestants side by side over prompt sets, and honest figures of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import PATH, allow_env_option, json_option, no_local_code_option, split_overrides
from specframe.cli.candidates import complete_recipe
from specframe.cli.target import recipes_of, report_next
from specframe.files.text import printable

if TYPE_CHECKING:
    from specframe.bench.recipes import BenchReport


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
    check: str | None,
    run_code: bool,
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
    from specframe.bench.contest.settings import ContestSettings
    from specframe.bench.recipes import run_bench, with_opponents
    from specframe.kernel.errors import InputError

    settings = ContestSettings(
        batch=batch,
        repeats=repeats,
        seed=seed,
        turns=turns,
        limit=limit,
        pause=pause,
        check=check,
        run_code=run_code,
        bound=bound,
    )
    words, overrides = recipes_of(*split_overrides(contestants))
    if max_new_tokens is not None:
        overrides.append(f"sampling.max_new_tokens={max_new_tokens}")
    selection = Selection(with_opponents(words), tuple(overrides), assistant, not no_local_code, tuple(vary), allow_env)
    if address is not None and engine != "ray":
        raise InputError("--address is that of a Ray cluster; add --engine ray")
    if pause and engine == "ray":
        raise InputError("--pause is between the repeats of one process; leave it out with --engine ray")
    cluster = Ray(selection, settings, address) if engine == "ray" else None
    report = run_bench(selection, settings, list(data) or [SHIPPED], out, fresh=fresh, cluster=cluster)
    _print(report, as_json=as_json)
    for name, error in report.errors.items():
        print(printable(f"{name} failed: {error}"), file=sys.stderr)
    if not report.errors:
        report_next("bench", split_overrides(contestants)[0])
    return 1 if report.errors else 0


def _print(report: BenchReport, *, as_json: bool) -> None:
    from specframe.bench.recipes import load_reporter

    if turns := report.results["skipped"]["turns"]:
        print(f"{turns} later turns had become too long for the context and were left out", file=sys.stderr)
    if as_json:
        print(json.dumps(report.summary))
    else:
        load_reporter().show(report.summary)
        print(printable(f"\nwritten to {report.folder}"))


def _compare(first: Path, second: Path) -> int:
    from specframe.bench.recipes import load_reporter
    from specframe.kernel.errors import InputError

    try:
        load_reporter().show_comparison(_read(first), _read(second))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise InputError(f"{first} or {second} is not as a bench wrote it ({problem}); run the bench again") from error
    return 0


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
