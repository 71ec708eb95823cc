"""`specframe certify RECIPE`: proves the composition lossless by enumeration, or names the error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from specframe.cli.arguments import (
    PATH,
    allow_env_option,
    json_option,
    no_local_code_option,
    overrides_argument,
    read_plan,
    recipe_argument,
)

SAMPLES = 1000
"""Number of completions of each text of a server."""

if TYPE_CHECKING:
    from specframe.decoding.pipeline import Prompt
    from specframe.recipes.build import Plan


@click.command()
@recipe_argument(required=False)
@overrides_argument
@no_local_code_option
@allow_env_option
@json_option("print the certificate as one JSON object")
@click.option(
    "--budget", type=click.IntRange(min=1), default=100_000, metavar="N", help="branches to enumerate per case, at most"
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="end the enumeration after this time; what was not run is not shown",
)
@click.option("--exact-only", is_flag=True, help="only enumerate; do not load the recipe's own model")
@click.option("--html", type=PATH, metavar="FILE", help="write a counter-example, if there is one, as a page")
@click.option(
    "--against",
    metavar="FILE.py:FUNCTION|URL",
    help="certify another program's acceptance function instead, or test a running server by its OpenAI endpoint",
)
@click.option(
    "--samples",
    type=click.IntRange(min=100),
    metavar="N",
    help="with --against: run the function N times, where it cannot be enumerated; draw N completions of each text of "
    "a server (default: 1000)",
)
@click.option("--model", metavar="NAME", help="with --against URL: the model to ask (default: the first it lists)")
@click.option(
    "--text", "texts", multiple=True, metavar="TEXT", help="with --against URL: a text to complete; may be repeated"
)
@click.option("--body", metavar="JSON", help="with --against URL: further fields of every request")
def certify(
    recipe: str | None,
    overrides: Sequence[str],
    no_local_code: bool,
    allow_env: bool,
    as_json: bool,
    budget: int,
    seconds: float | None,
    exact_only: bool,
    html: Path | None,
    against: str | None,
    samples: int | None,
    model: str | None,
    texts: Sequence[str],
    body: str | None,
) -> int:
    """Prove that a recipe is lossless: enumerate every random outcome of the real code.

    The exit status is 1 if what promises to be lossless is not, or was not shown to be.
    """
    from specframe.kernel.errors import InputError

    if against is not None and recipe is not None:
        raise InputError(f"give either a recipe or --against: {recipe} and {against} are two things")
    if against is not None and (html is not None or seconds is not None):
        option = "--seconds" if html is None else "--html"
        raise InputError(f"{option} is for recipes: it does not go with --against")
    for option, value in (("--model", model), ("--text", texts), ("--body", body)):
        if value and not is_address(against):
            raise InputError(f"{option} is for servers: it goes with --against URL")
    if samples is not None and against is None:
        raise InputError("--samples is for functions and servers: it goes with --against")
    if is_address(against):
        return _test_server(against, samples or SAMPLES, model, texts, _fields(body), as_json=as_json)
    if against is not None and samples is not None:
        return _sample_function(against, samples, as_json=as_json)
    if against is not None:
        return _certify_function(against, budget, as_json=as_json)
    if recipe is None:
        raise InputError("give a recipe, --against FILE.py:FUNCTION or --against URL")
    plan = read_plan(recipe, overrides, local_code=not no_local_code, environment=allow_env)
    prompts = [] if exact_only else plan.settings["run"].prompts
    return _certify_plan(plan, budget, seconds, prompts, html, as_json=as_json)


def _certify_plan(
    plan: Plan, budget: int, seconds: float | None, prompts: Sequence[Prompt], html: Path | None, *, as_json: bool
) -> int:
    from specframe.certify.recipe import certify_recipe
    from specframe.cli.render.certificate import print_certificate, progress_shown
    from specframe.cli.show import load_renderer
    from specframe.files.folders import check_file
    from specframe.files.provenance import write_text

    if html is not None:  # checked before minutes of enumeration
        check_file(html, "give --html another place")
        render = load_renderer()
    with ExitStack() as bar:
        listener = bar.enter_context(progress_shown(quiet=as_json))

        def announce(step: str) -> None:
            bar.close()  # the enumeration is over
            if not as_json:
                print(f"the recipe's own model: {step}", file=sys.stderr, flush=True)

        certificate = certify_recipe(
            plan, prompts, budget=budget, seconds=seconds, listener=listener, announce=announce
        )
    if as_json:
        print(json.dumps(certificate.as_dict()))
    else:
        print_certificate(certificate.as_dict(), plan.recipe.path.name, certificate.counterexample)
    if html is not None and certificate.counterexample is not None:
        write_text(html, render(certificate.counterexample.trace))
    as_declared = not certificate.promised and not certificate.interrupted and certificate.guarantees_hold
    return 0 if as_declared or (certificate.composed and certificate.passed) else 1


def _certify_function(against: str, budget: int, *, as_json: bool) -> int:
    from specframe.certify.function import certify_function
    from specframe.cli.render.certificate import progress_shown
    from specframe.cli.render.foreign import print_function

    with progress_shown(quiet=as_json) as listener:
        summary = certify_function(against, budget, listener)
    if as_json:
        print(json.dumps(summary))
    else:
        print_function(summary)
    return 0 if summary["lossless"] else 1


def _sample_function(against: str, samples: int, *, as_json: bool) -> int:
    from specframe.certify.function import sample_function
    from specframe.cli.render.foreign import print_samples

    summary = sample_function(against, samples, partial(_announce, as_json))
    if as_json:
        print(json.dumps(summary))
    else:
        print_samples(summary)
    return 1 if summary["different"] else 0


def _test_server(
    url: str, samples: int, model: str | None, texts: Sequence[str], body: dict[str, Any], *, as_json: bool
) -> int:
    from specframe.certify.function import certify_server
    from specframe.cli.render.foreign import print_server

    summary = certify_server(url, samples, model, texts, body, partial(_announce, as_json))
    if as_json:
        print(json.dumps(summary))
    else:
        print_server(summary)
    return 0 if summary["tested"] and not summary["different"] else 1


def is_address(against: str | None) -> TypeGuard[str]:
    """Returns whether the tested object is a server's address."""
    return against is not None and against.startswith(("http://", "https://"))


def _fields(body: str | None) -> dict[str, Any]:
    """Parses the fields of --body. Raises InputError for anything but a JSON object."""
    from specframe.kernel.errors import InputError

    try:
        fields = json.loads(body or "{}")
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InputError(f'--body is a JSON object, such as {{"top_k": -1}}, got {body!r}')
    return fields


def _announce(quiet: bool, step: str) -> None:
    if not quiet:
        print(step, file=sys.stderr, flush=True)
