"""`specframe export RECIPE --to FORM`, `specframe import RECIPE --out FOLDER`: drafters for and from other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specframe.cli.arguments import (
    PATH,
    json_option,
    limit_option,
    prompts_option,
    prompts_to_measure,
    recipe_command,
    replanned,
)
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from specframe.recipes.build import Plan


@recipe_command
@click.option(
    "--to",
    "form",
    required=True,
    metavar="FORM",
    help="vllm, sglang, transformers, gguf, openvino, speculators, eagle, medusa, qwen or deepseek; drafters have some",
)
@click.option("--out", type=PATH, metavar="FOLDER", help="where to write it (default: exports/RECIPE-FORM)")
@click.option("--check", "checked", is_flag=True, help="decode with it in that engine, and compare the counts")
@click.option("--python", type=PATH, metavar="FILE", help="--check: the Python that has the engine (default: this one)")
@prompts_option
@limit_option
@json_option("print folder, size, checklist and command as one JSON object")
def export(
    plan: Plan,
    form: str,
    out: Path | None,
    checked: bool,
    python: Path | None,
    prompts: Path | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """Write a recipe's trained drafter in the form that vLLM, SGLang or another program reads.

    With --check, the engine decodes the recipe's prompts greedily, and specframe a chain of the same length, both in
    float32; the exit status is 1 unless all cycles, accepted tokens and texts agree.
    """
    from specframe.cli.render import print_rows
    from specframe.interchange.export import convert, default_folder, write

    if checked:
        from specframe.interchange.check import find_engine

        engine = find_engine(form)
    elif python or prompts or limit:
        raise InputError("--python, --prompts and --limit belong to --check")
    made = convert(plan, form)
    folder = out or default_folder(plan, form)
    write(made, plan, form, folder)
    numbers = sum(tensor.numel() for tensor in made.tensors.values())
    arrival = None
    if checked:
        from specframe.interchange.check import chain_overrides, check

        chain = replanned([*chain_overrides(plan.recipe.data, made.length), *made.omitted])
        texts = prompts_to_measure(prompts, limit, chain)
        arrival = check(made, chain, folder.resolve(), engine, texts, str(python or sys.executable))
    command = made.command.replace("FOLDER", str(folder)) if made.command else None
    if as_json:
        found = {"folder": str(folder), "form": form, "numbers": numbers, "checklist": dict(made.checklist)}
        print(json.dumps({**found, "command": command, **({} if arrival is None else {"check": arrival.figures})}))
        return int(arrival is not None and not arrival.exact)
    print(f"{folder}: {numbers:,} numbers, as {form} reads them")
    print_rows(made.checklist, indent=2)
    if command:
        print(command)
    if arrival is None:
        return 0
    print_rows([(name, f"{cycles:,} cycles, {accepted:,} accepted") for name, cycles, accepted in arrival.rows])
    print(arrival.verdict)
    return int(not arrival.exact)


@recipe_command
@click.option("--out", required=True, type=PATH, metavar="FOLDER", help="where to write it")
@json_option("print folder, size and checklist as one JSON object")
def imports(plan: Plan, out: Path, as_json: bool) -> int:
    """Read a published drafter, check that it fits the recipe's target, and write it as specframe stores it."""
    from specframe.cli.render import print_rows
    from specframe.interchange.imports import bring_in

    found = bring_in(plan, out)
    if as_json:
        print(json.dumps({"folder": str(out), "numbers": found.numbers, "checklist": dict(found.checklist)}))
        return 0
    print(f"{out}: {found.numbers:,} numbers, as {found.name} reads them")
    print_rows(found.checklist, indent=2)
    print(f"drafter.weights={out}")
    return 0
