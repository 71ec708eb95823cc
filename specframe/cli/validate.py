"""`specframe validate RECIPE`: reports every problem of a recipe at once, before anything loads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import asked_recipe, json_option, recipe_command
from specframe.decoding.models import names_model
from specframe.files.text import printable

if TYPE_CHECKING:
    from specframe.recipes.build import Plan


@recipe_command
@json_option("print parts, values and their origins as one JSON object")
@click.option("--show", is_flag=True, help="print the resolved recipe and each value's origin")
def validate(plan: Plan, as_json: bool, show: bool) -> int:
    """Check a recipe: names, options, types, and whether its parts fit together."""
    from specframe.recipes.recipe import dotted

    recipe = plan.recipe
    require_places(plan)
    awaited = hub_names(plan)
    if names_model(asked_recipe()):
        awaited = [place for place in awaited if not require_model(place)]
    values: dict[str, tuple[Any, str]] = {}
    for key, origin in sorted(recipe.origins.items(), key=lambda item: dotted(item[0])):
        value: Any = recipe.data
        for step in key:
            value = value[step]
        if not isinstance(value, dict | list):
            values[dotted(key)] = value, origin
    if as_json:
        parts = {name: part.entry.qualified for name, part in plan.parts.items()}
        origins = {key: {"value": value, "origin": origin} for key, (value, origin) in values.items()}
        print(json.dumps({"valid": True, "parts": parts, "recipe": recipe.data, "values": origins}, default=str))
        return 0
    if show:
        for name, (value, origin) in values.items():
            print(printable(f"{name} = {json.dumps(value)}  ({origin})"))
    names = ", ".join(f"{name} {part.entry.name}" for name, part in plan.parts.items())
    later = "".join(f"; {place} is looked for on the Hub when it is loaded" for place in awaited)
    print(printable(f"{asked_recipe()}: valid ({names}){later}"))
    return 0


def hub_names(plan: Plan) -> list[str]:
    """Returns the models and weights of a plan that are no local folders or files, so Hub names; nothing is fetched."""
    from specframe.neural.weights.locate import find_place
    from specframe.recipes.zoo import ZOO

    named = [part.options.get(option) for part in plan.parts.values() for option in ("model", "weights")]
    places = [name for name in named if isinstance(name, str) and not name.startswith(ZOO)]
    return [name for name in dict.fromkeys(places) if isinstance(find_place(name), str)]


def require_model(name: str) -> bool:
    """Returns True for a model of the Hub; raises InputError if neither the Hub nor this machine has its config."""
    from specframe.components.targets.loading import find_config
    from specframe.components.targets.source import ModelSource

    find_config(name, ModelSource.of(name, None))
    return True


def require_places(plan: Plan) -> None:
    """Raises RecipeError for missing folders and files of models and weights; nothing is fetched."""
    from specframe.kernel.errors import RecipeError
    from specframe.neural.weights.locate import find_place
    from specframe.recipes.zoo import ZOO

    problems = []
    for name, part in plan.parts.items():
        for option in ("model", "weights"):
            place = part.options.get(option)
            if isinstance(place, str) and not place.startswith(ZOO) and find_place(place) is None:
                origin = plan.recipe.origin((name, option))
                problems.append(f"{origin}: {name}.{option}: there is no folder or file {place!r}")
    if problems:
        raise RecipeError("\n".join(problems))
