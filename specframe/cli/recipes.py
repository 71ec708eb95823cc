"""`specframe recipes`: those that come with it, and copies of them to change."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specframe.cli.render.columns import in_columns, terminal_columns
from specframe.files.text import printable

SUMMARY = "list the recipes that come with specframe, or copy one to change it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import as_path

    parser.add_argument(
        "name", nargs="?", help="print this recipe, with everything that it extends (default: list all recipes)"
    )
    parser.add_argument("--out", type=as_path, metavar="FILE", help="write the recipe to a new file instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object per recipe")


def execute(options: argparse.Namespace) -> int:
    """Prints the list, or one recipe as a whole."""
    from specframe.kernel.errors import InputError
    from specframe.kernel.shipped import shipped_recipes

    if options.name is not None:
        text = whole(options.name)
        if options.out is None:
            print(text, end="")
            return 0
        if options.out.exists():
            raise InputError(f"{options.out} exists already; choose another --out")
        try:
            options.out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{options.out} cannot be written: {error.strerror}; choose another --out") from error
        print(printable(f"{options.out}: change it, then `specframe run {options.out}`"))
        return 0
    if options.out is not None:
        raise InputError("--out takes a copy of one recipe: name it")
    found = [(name, about(path)) for name, path in shipped_recipes()]
    if options.json:
        lines = [json.dumps({"name": name, "about": summary}) for name, summary in found]
    else:
        lines = in_columns(found, terminal_columns())
    print("\n".join(map(printable, lines)))
    return 0


def about(path: Path) -> str:
    """The text of a recipe's first comment."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


def whole(name: str) -> str:
    """A recipe and all that it extends, as the text of one file."""
    import yaml

    from specframe.kernel.recipe import Recipe
    from specframe.kernel.shipped import find_recipe

    path = find_recipe(name)
    data = yaml.safe_dump(Recipe.read(path).data, sort_keys=False, default_flow_style=None, width=100)
    return f"# {about(path)}\n# A copy of the recipe {name}, with all that it extends.\n{data}"
