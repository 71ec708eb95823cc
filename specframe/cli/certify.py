"""`specframe certify RECIPE`: the composition proved lossless by enumeration, or the error named."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.certify.compositions.enumeration import EnumerationProgress

LENGTHS = (3, 2)
"""The first tokens whose joint law is compared for a function: fewer where more are out of the budget's reach."""
SUMMARY = "prove that a recipe is lossless: enumerate every random outcome of the real code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_environment_argument

    parser.add_argument("recipe", nargs="?", help="a recipe file, or the name of one that `specframe recipes` lists")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="values that replace the recipe's")
    parser.add_argument("--no-local-code", action="store_true", help="refuse components from ./file.py:Name")
    add_environment_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the certificate as one JSON object")
    parser.add_argument(
        "--budget",
        type=int,
        default=100_000,
        metavar="N",
        help="branches to enumerate per case, at most (default: 100000)",
    )
    parser.add_argument("--exact-only", action="store_true", help="only enumerate; do not load the recipe's own model")
    parser.add_argument(
        "--against", metavar="FILE.py:FUNCTION", help="certify another program's acceptance function instead"
    )


def execute(options: argparse.Namespace) -> int:
    """Prints the certificate; 1 if what promises to be lossless is not, or was not shown to be."""
    from specframe.kernel.errors import InputError

    if options.budget < 1:
        raise InputError(f"a budget of {options.budget} branches runs nothing; use 1 or more")
    if options.against is not None and options.recipe is not None:
        raise InputError(f"give either a recipe or --against: {options.recipe} and {options.against} are two things")
    if options.against is not None:
        return _certify_function(options)
    if options.recipe is None:
        raise InputError("give a recipe, or --against FILE.py:FUNCTION")
    return _certify_recipe(options)


def _certify_recipe(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from specframe.cli.main import read_plan
    from specframe.cli.target import fetch_target
    from specframe.kernel.errors import InputError, SpecframeError, raised_at

    valid = read_plan(options)
    prompts = [] if options.exact_only else valid.settings["run"].prompts
    if prompts:
        fetch_target(valid)  # now, and not after minutes of enumeration

    from specframe.certify.certify import certify_plan
    from specframe.cli.render.certificate import print_certificate, progress_shown

    with progress_shown(quiet=options.json) as listener:
        try:
            certificate = certify_plan(valid, budget=options.budget, listener=listener)
        except SpecframeError:
            raise
        except Exception as error:  # a part that is being written raises what it likes
            raise InputError(f"the composition fails on a small target, at {raised_at(error)}") from error
    real_passed = True
    failed = certificate.promised and not certificate.exact
    if prompts and not certificate.interrupted and not failed:
        from specframe.certify.real import certify_real
        from specframe.decoding.pipeline import Pipeline

        def listen(step: str) -> None:
            if not options.json:
                print(f"the recipe's own model: {step}", file=sys.stderr, flush=True)

        report = certify_real(Pipeline.build(valid), prompts, listener=listen)
        certificate, real_passed = replace(certificate, real=report.as_dict()), report.passed
    if options.json:
        print(json.dumps(certificate.as_dict()))
    else:
        print_certificate(certificate.as_dict(), valid.recipe.path.name)
    kept = certificate.lossless and real_passed
    return 0 if kept or (not certificate.promised and not certificate.interrupted) else 1


def _certify_function(options: argparse.Namespace) -> int:
    from specframe.certify.functions.against import NEARLY, Foreign, load_function
    from specframe.cli.render.certificate import print_function, progress_shown

    accept = load_function(options.against)
    found: list[dict[str, Any]] = []
    with progress_shown(quiet=options.json) as listener:
        for seed in range(3):
            for length in LENGTHS:
                name = f"laws {seed}" + (f", {length} tokens" if length < LENGTHS[0] else "")
                foreign = Foreign(accept, seed=seed, length=length)
                comparison = foreign.compare(budget=options.budget, progress=_named(listener, name))
                run = comparison.enumeration
                if run.exhausted or run.interrupted or comparison.tv >= NEARLY:
                    break
            found.append(
                {
                    "name": name,
                    "tokens": length,
                    "tv": comparison.tv,
                    "first_token_tv": comparison.first_tv,
                    "exhausted": run.exhausted,
                    "branches": run.branches,
                    "mass": run.mass,
                    "worst_sequence": list(comparison.worst),
                    "wanted": comparison.wanted,
                    "got": comparison.got,
                }
            )
    worst = max(found, key=lambda case: case["tv"])
    lossless = worst["tv"] < NEARLY and all(case["exhausted"] for case in found)
    summary = (
        {"function": options.against, "lossless": lossless, "different": worst["tv"] >= NEARLY}
        | worst
        | {"cases": found}
    )
    del summary["name"]
    if options.json:
        print(json.dumps(summary))
    else:
        print_function(summary)
    return 0 if lossless else 1


def _named(listener: Callable[[str, EnumerationProgress], None], name: str) -> Callable[[EnumerationProgress], None]:
    return lambda progress: listener(name, progress)
