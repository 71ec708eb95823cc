"""Values for shell completion: recipes, components, and options of the current component."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from specframe.recipes.registry import Registry

PARTS = ("target", "drafter", "tree", "verifier")
"""Sections of a recipe that name one component each."""


def complete_recipe(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns recipes with this prefix: names, recipe files and folders; none if the folder cannot be read."""
    from specframe.recipes.folders import shipped_recipes

    try:
        paths = sorted(_recipe_paths(incomplete))
    except (FileNotFoundError, NotADirectoryError):
        paths = []  # it may be the prefix of a name: small/...
    except OSError:
        return []
    names = [name for name, _ in shipped_recipes() if name.startswith(incomplete)]
    if not names and len(paths) == 1 and paths[0].endswith("/") and paths[0] != incomplete:
        return complete_recipe(ctx, param, paths[0])  # otherwise the shell would end the word here
    return [CompletionItem(value) for value in (*names, *paths)]


def complete_component(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the components and sections with this prefix."""
    from specframe.recipes.discovery import discover

    found = {entry.name: entry.summary for entry in discover().entries if entry.name.startswith(incomplete)}
    return [CompletionItem(name, help=about) for name, about in found.items()]


def complete_override(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the overrides with this prefix: sections, options of the component, and components after `use=`.

    bash splits words at `=` and asks for the value alone; other shells ask for the whole word.
    """
    from specframe.kernel.errors import SpecframeError
    from specframe.recipes.discovery import discover

    given = _joined(ctx.params.get("overrides") or ())
    key, equals, value = incomplete.partition("=")
    split = bool(given) and (given[-1].endswith("=") or "=" not in given[-1])
    try:
        registry = discover()
        if split:
            return _values(registry, given[-1].removesuffix("="), incomplete, "")
        if equals:
            return _values(registry, key, value, f"{key}=")
        return _keys(registry, _recipe_data(ctx.params.get("recipe"), given), incomplete)
    except (SpecframeError, OSError):
        return []


def _recipe_paths(incomplete: str) -> Iterator[str]:
    """Yields the recipe files and folders that continue a path. Raises OSError if its folder cannot be read."""
    folder, start = os.path.split(incomplete)
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in entries:
            if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
                if entry.is_dir():
                    yield os.path.join(folder, entry.name, "")
                elif entry.name.endswith(".yaml"):
                    yield os.path.join(folder, entry.name)


def _joined(words: Sequence[str]) -> list[str]:
    """Joins overrides that bash has split at `=`."""
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _recipe_data(recipe: str | None, given: Sequence[str]) -> dict[str, Any]:
    """Returns the recipe's data with the components chosen so far; empty if it cannot be read."""
    from specframe.kernel.errors import SpecframeError
    from specframe.recipes.recipe import Recipe

    if recipe is None:
        return {}
    try:
        return Recipe.read(recipe, [word for word in given if word.partition("=")[0].endswith((".use", *PARTS))]).data
    except SpecframeError:
        return {}


def _values(registry: Registry, key: str, value: str, before: str) -> list[CompletionItem]:
    """Returns the components that a key, `drafter.use` or `drafter`, can name."""
    kind = key.removesuffix(".use").rpartition(".")[2]
    entries = registry.of(kind) if key.endswith(".use") or key in PARTS else []
    return [CompletionItem(before + e.name, help=e.summary) for e in entries if e.name.startswith(value)]


def _keys(registry: Registry, data: dict[str, Any], incomplete: str) -> list[CompletionItem]:
    """Returns the keys with this prefix: sections, then the options of a section or of its component."""
    path = incomplete.rpartition(".")[0]
    if path:
        found = {f"{path}.{name}": about for name, about in _options(registry, data, path.split(".")).items()}
    else:
        found = {f"{name}.": "" for name in (*PARTS, *(entry.name for entry in registry.of("section")))}
    fitting = [CompletionItem(key, help=about or None) for key, about in found.items() if key.startswith(incomplete)]
    if not path and len(fitting) == 1:  # otherwise the shell would end the word here
        return _keys(registry, data, fitting[0].value)
    return fitting


def _options(registry: Registry, data: Any, path: list[str]) -> dict[str, str]:
    """Returns the continuations of a path such as `drafter` or `drafter.head`, up to the value, and its explanation."""
    from specframe.recipes.options import read_options
    from specframe.recipes.registry import KINDS

    if len(path) == 1 and any(entry.name == path[0] for entry in registry.of("section")):
        entry, found = registry.find("section", path[0]), {}
    else:
        for step in path:
            data = data.get(step) if isinstance(data, dict) else None
        used = data.get("use") if isinstance(data, dict) else data
        found = {"use=": f"the {path[-1]}"} if path[-1] in KINDS else {}
        if not found or not isinstance(used, str):
            return found
        entry = registry.find(path[-1], used)
    for option in read_options(entry.load()).values():
        found[f"{option.name}.use=" if option.kind else f"{option.name}="] = option.help
    return found
