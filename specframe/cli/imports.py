"""`specframe import RECIPE drafter.weights=NAME --out FOLDER`: a published drafter in a folder of one's own."""

from __future__ import annotations

import argparse
import json

SUMMARY = "read a published drafter, check that it fits the recipe's target, and write it as specframe stores it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_recipe_arguments, as_path

    add_recipe_arguments(parser)
    parser.add_argument("--out", required=True, type=as_path, metavar="FOLDER", help="where to write it")
    parser.add_argument("--json", action="store_true", help="print folder, size and checklist as one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Writes the folder and prints what was read."""
    from specframe.cli.main import read_plan
    from specframe.cli.target import fetch_target

    plan = read_plan(options)
    fetch_target(plan)

    from specframe.interchange.imports import bring_in

    found = bring_in(plan, options.out)
    if options.json:
        print(json.dumps({"folder": str(options.out), "numbers": found.numbers, "checklist": dict(found.checklist)}))
        return 0
    print(f"{options.out}: {found.numbers:,} numbers, as {found.name} reads them")
    width = max(len(word) for word, _ in found.checklist)
    for word, meaning in found.checklist:
        print(f"  {word:<{width}}  {meaning}")
    print(f"drafter.weights={options.out}")
    return 0
