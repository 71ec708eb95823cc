"""`specframe import RECIPE drafter.weights=NAME --out FOLDER`: a published drafter in a folder of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specframe.cli.arguments import PATH, json_option, recipe_command

if TYPE_CHECKING:
    from specframe.kernel.build import Plan


@recipe_command
@click.option("--out", required=True, type=PATH, metavar="FOLDER", help="where to write it")
@json_option("print folder, size and checklist as one JSON object")
def imports(plan: Plan, out: Path, as_json: bool) -> int:
    """Read a published drafter, check that it fits the recipe's target, and write it as specframe stores it."""
    from specframe.interchange.imports import bring_in

    found = bring_in(plan, out)
    if as_json:
        print(json.dumps({"folder": str(out), "numbers": found.numbers, "checklist": dict(found.checklist)}))
        return 0
    print(f"{out}: {found.numbers:,} numbers, as {found.name} reads them")
    width = max(len(word) for word, _ in found.checklist)
    for word, meaning in found.checklist:
        print(f"  {word:<{width}}  {meaning}")
    print(f"drafter.weights={out}")
    return 0
