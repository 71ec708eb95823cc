"""`specframe export RECIPE --to FORM`, `specframe import RECIPE --out FOLDER`: drafters of and for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specframe.cli.arguments import PATH, json_option, recipe_command

if TYPE_CHECKING:
    from specframe.recipes.build import Plan


@recipe_command
@click.option(
    "--to",
    "form",
    required=True,
    metavar="FORM",
    help="vllm, sglang, transformers, gguf, speculators, eagle, medusa, qwen or deepseek; a drafter has some of these",
)
@click.option("--out", type=PATH, metavar="FOLDER", help="where to write it (default: exports/RECIPE-FORM)")
@json_option("print folder, size, checklist and command as one JSON object")
def export(plan: Plan, form: str, out: Path | None, as_json: bool) -> int:
    """Write a recipe's trained drafter in the form that vLLM, SGLang or another program reads."""
    from specframe.cli.render import print_rows
    from specframe.interchange.export import convert, default_folder, write

    made = convert(plan, form)
    folder = out or default_folder(plan, form)
    write(made, plan, form, folder)
    numbers = sum(tensor.numel() for tensor in made.tensors.values())
    command = made.command.replace("FOLDER", str(folder)) if made.command else None
    if as_json:
        found = {"folder": str(folder), "form": form, "numbers": numbers, "checklist": dict(made.checklist)}
        print(json.dumps({**found, "command": command}))
        return 0
    print(f"{folder}: {numbers:,} numbers, as {form} reads them")
    print_rows(made.checklist, indent=2)
    if command:
        print(command)
    return 0


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
