"""`specframe recipes`: lists the included recipes, and copies them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from specframe.cli.arguments import PATH, json_option
from specframe.cli.candidates import complete_recipe
from specframe.cli.render import print_rows
from specframe.files.text import printable
from specframe.recipes.registry import METHODS
from specframe.recipes.versions import missing_methods


@click.command()
@click.argument(
    "name",
    required=False,
    help="print this recipe, with everything that it extends, in place of the list",
    shell_complete=complete_recipe,
)
@click.option("--out", type=PATH, metavar="FILE", help="write the recipe to a new file instead")
@json_option("print one JSON object per recipe")
def recipes(name: str | None, out: Path | None, as_json: bool) -> int:
    """List the recipes that come with specframe, or copy one to change it."""
    from specframe.kernel.errors import InputError
    from specframe.recipes.folders import shipped_recipes

    if name is not None:
        text = whole(name)
        if out is None:
            print(text, end="")
            return 0
        if out.exists():
            raise InputError(f"{out} exists already; choose another --out")
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{out} cannot be written: {error.strerror}; choose another --out") from error
        print(printable(f"{out}: change it, then `specframe run {out}`"))
        return 0
    if out is not None:
        raise InputError("--out takes a copy of one recipe: name it")
    found = [(shipped, about(path)) for shipped, path in shipped_recipes()]
    if as_json:
        print("\n".join(json.dumps({"name": shipped, "about": summary}) for shipped, summary in found))
        return 0
    lacking = _lacking()
    print_rows([(f"{shipped} *" if shipped in lacking else shipped, summary) for shipped, summary in found])
    if lacking:
        print(f"* needs what is not installed here: pip install {METHODS}", file=sys.stderr)
    return 0


def _lacking() -> set[str]:
    """Returns the recipes that name a component or model that is not installed; empty if all plugins are installed."""
    from specframe.recipes.discovery import discover
    from specframe.recipes.folders import shipped_recipes
    from specframe.recipes.recipe import Recipe
    from specframe.recipes.zoo import ZOO

    if not missing_methods():
        return set()
    entries = discover().entries
    known = {name for entry in entries for name in (entry.name, entry.qualified)}
    known |= {f"{ZOO}{entry.name}" for entry in entries if entry.kind == "model"}
    return {name for name, path in shipped_recipes() if not set(_named(Recipe.read(path).data)) <= known}


def _named(data: Any) -> Iterator[str]:
    """Yields the components of a recipe's sections, and the embedded models."""
    from specframe.recipes.zoo import ZOO

    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list):
            yield from _named(value)
        elif key == "use" or (key == "model" and isinstance(value, str) and value.startswith(ZOO)):
            yield value


def about(path: Path) -> str:
    """Returns the text of a recipe's first comment."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


def whole(name: str) -> str:
    """Returns a recipe and all its parents, as the text of one file."""
    import yaml

    from specframe.recipes.folders import find_recipe
    from specframe.recipes.recipe import Recipe

    path = find_recipe(name)
    data = yaml.safe_dump(Recipe.read(path).data, sort_keys=False, default_flow_style=None, width=100)
    return f"# {about(path)}\n# A copy of the recipe {name}, with all that it extends.\n{data}"
