"""The methods that docs/methods.yaml lists, and the files of their recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specframe.recipes.build import Plan, plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import Registry

DOCS = Path(__file__).resolve().parent
RECIPES = DOCS.parent / "recipes"
MODELS = {
    "zoo://smollm2-135m": "SmolLM2",
    "zoo://talk-7m": "the embedded model",
    "zoo://state-5m": "the embedded hybrid",
    "zoo://see-8m": "the embedded model that reads images",
}
"""The targets of the shipped recipes, as tables name them."""
Method = Mapping[str, Any]


@cache
def read_table() -> Mapping[str, Any]:
    """The hand-written table: `groups` of methods, and the `own` components that are no paper's.

    A plugin's methods.yaml adds rows to groups of the same title, and groups of its own.
    """
    tables = [DOCS / "methods.yaml", *sorted(DOCS.parent.glob("plugins/*/methods.yaml"))]
    return merge([yaml.safe_load(path.read_text(encoding="utf-8")) for path in tables])


def merge(tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One table of several, in their order."""
    groups: dict[str, dict[str, Any]] = {}
    for group in (each for table in tables for each in table.get("groups", ())):
        found = groups.setdefault(group["title"], {**group, "methods": []})
        found["methods"] += group["methods"]
    return {"groups": list(groups.values()), "own": [name for table in tables for name in table.get("own", ())]}


def find_recipe(name: str) -> str | None:
    """The file of a method's recipe below recipes/: for the published target or, where there is none, the small one.

    Those to the letter of a paper come last.
    """
    paths = [path.relative_to(RECIPES) for path in RECIPES.rglob(f"{name}.yaml")]
    found = sorted(paths, key=lambda path: ("papers" in path.parts, "small" in path.parts, len(path.parts), path))
    return found[0].as_posix() if found else None


def recipes_shown() -> dict[str, Method]:
    """The files of all recipes of methods, each with the first method that it is of."""
    shown: dict[str, Method] = {}
    for method in (each for group in read_table()["groups"] for each in group["methods"]):
        recipe = find_recipe(method.get("recipe", ""))
        if recipe is not None:
            shown.setdefault(recipe, method)
    return shown


@cache
def planned(recipe: str) -> Plan:
    """The plan of a recipe's file."""
    return plan(Recipe.read(RECIPES / recipe), _registry())


@cache
def _registry() -> Registry:
    """The installed components, discovered once for all recipes."""
    return discover()


def identity(recipe: str) -> tuple[str, str]:
    """The name and target of a recipe's file, by which benches have it."""
    return Path(recipe).stem, planned(recipe).recipe.data["target"].get("model")


def model_name(target: str) -> str:
    """The name of a target's model as tables show it."""
    return MODELS.get(target, target)
