"""`specframe export RECIPE --to FORM`: the recipe's drafter as another program reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specframe.cli.arguments import PATH, json_option, recipe_command

if TYPE_CHECKING:
    from specframe.kernel.build import Plan


@recipe_command
@click.option(
    "--to",
    "form",
    required=True,
    metavar="FORM",
    help="vllm, sglang, speculators, eagle, medusa, qwen or deepseek; a drafter has some of these",
)
@click.option("--out", type=PATH, metavar="FOLDER", help="where to write it (default: exports/RECIPE-FORM)")
@json_option("print folder, size, checklist and command as one JSON object")
def export(plan: Plan, form: str, out: Path | None, as_json: bool) -> int:
    """Write a recipe's trained drafter in the form that vLLM, SGLang or another program reads."""
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
    width = max(len(word) for word, _ in made.checklist)
    for word, meaning in made.checklist:
        print(f"  {word:<{width}}  {meaning}")
    if command:
        print(command)
    return 0
