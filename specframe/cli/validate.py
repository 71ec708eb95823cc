"""`specframe validate RECIPE`: every problem of a recipe at once, before anything loads."""

from __future__ import annotations

import argparse
import json
from typing import Any

from specframe.files.text import printable

SUMMARY = "check a recipe: names, options, types, and whether its parts fit together"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_recipe_arguments

    add_recipe_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print parts, values and their origins as one JSON object")
    parser.add_argument("--show", action="store_true", help="print the resolved recipe and each value's origin")


def execute(options: argparse.Namespace) -> int:
    """Prints that the recipe is valid, or raises RecipeError with every problem."""
    from specframe.cli.main import read_plan
    from specframe.kernel.recipe import dotted

    result = read_plan(options)
    recipe = result.recipe
    values: dict[str, tuple[Any, str]] = {}
    for key, origin in sorted(recipe.origins.items(), key=lambda item: dotted(item[0])):
        value: Any = recipe.data
        for step in key:
            value = value[step]
        if not isinstance(value, dict | list):
            values[dotted(key)] = value, origin
    if options.json:
        parts = {name: part.entry.qualified for name, part in result.parts.items()}
        origins = {key: {"value": value, "origin": origin} for key, (value, origin) in values.items()}
        print(json.dumps({"valid": True, "parts": parts, "recipe": recipe.data, "values": origins}, default=str))
        return 0
    if options.show:
        for name, (value, origin) in values.items():
            print(printable(f"{name} = {json.dumps(value)}  ({origin})"))
    names = ", ".join(f"{name} {part.entry.name}" for name, part in result.parts.items())
    print(printable(f"{options.recipe}: valid ({names})"))
    return 0
