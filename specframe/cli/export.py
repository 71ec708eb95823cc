"""`specframe export RECIPE --to FORM`: the recipe's drafter as another program reads it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SUMMARY = "write a recipe's trained drafter in the form that vLLM, SGLang or another program reads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_recipe_arguments, as_path

    add_recipe_arguments(parser)
    parser.add_argument(
        "--to",
        required=True,
        metavar="FORM",
        help="vllm, sglang, speculators, eagle, medusa, qwen or deepseek; a drafter has some of these",
    )
    parser.add_argument(
        "--out", type=as_path, metavar="FOLDER", help="where to write it (default: exports/RECIPE-FORM)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print folder, size, checklist and command as one JSON object"
    )


def execute(options: argparse.Namespace) -> int:
    """Writes the folder and prints what the program will read there."""
    from specframe.cli.main import read_plan
    from specframe.cli.target import fetch_target

    plan = read_plan(options)
    fetch_target(plan)

    from specframe.interchange.export import export, write

    made = export(plan, options.to)
    folder: Path = options.out or Path("exports") / f"{plan.recipe.path.stem}-{options.to}"
    write(made, plan, options.to, folder)
    numbers = sum(tensor.numel() for tensor in made.tensors.values())
    command = made.command.replace("FOLDER", str(folder)) if made.command else None
    if options.json:
        found = {"folder": str(folder), "form": options.to, "numbers": numbers, "checklist": dict(made.checklist)}
        print(json.dumps({**found, "command": command}))
        return 0
    print(f"{folder}: {numbers:,} numbers, as {options.to} reads them")
    width = max(len(word) for word, _ in made.checklist)
    for word, meaning in made.checklist:
        print(f"  {word:<{width}}  {meaning}")
    if command:
        print(command)
    return 0
