"""A recipe: YAML, its parents, overrides from the command line, and where every value came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from specframe.kernel.errors import RecipeError
from specframe.kernel.folders import find_recipe, recipes_folder
from specframe.kernel.source import UNREADABLE, Key, interpolate, read_source
from specframe.kernel.versions import own_packages

SUFFIXES = (".yaml", ".yml")
"""Suffixes of parents' names: no other file is opened for a recipe's sake."""
DEEPEST = 20
"""Recipes above a recipe."""
COMMAND_LINE = "command line"
CRAMPED = re.compile(r"[{,]\s*\w+:[^\s/]")
"""Matches an entry of a YAML mapping that lacks the space after its colon."""
SPACES = "put a space behind each colon, as in {use: none}"


def dotted(key: Key) -> str:
    """The key as recipes and messages write it: loss.0.weight."""
    return ".".join(map(str, key))


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


@dataclass
class Recipe:
    """A recipe's data, with the origin of every value."""

    path: Path
    data: dict[str, Any]
    origins: dict[Key, str] = field(default_factory=dict)

    def origin(self, key: Key) -> str:
        """Returns where the value at `key`, or the nearest section above it, was written: "file:line"."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, str(self.path))

    def overridden(self, key: Key) -> bool:
        """Returns whether the value at `key` was given on the command line."""
        return self.origins.get(key) == COMMAND_LINE

    def near(self, key: Key, file: Path) -> Path:
        """The file that the value at `key` names, in the folder of the file that the value was written in.

        On the command line it is one of the working folder, or, if there is none, of the recipe's.
        """
        near = self._file(key).parent / file
        return file if self.overridden(key) and (file.is_file() or not near.is_file()) else near

    def _file(self, key: Key) -> Path:
        """The file that the value at `key` was written in; the recipe's own for one of the command line."""
        written, _, line = self.origin(key).rpartition(":")
        return Path(written) if line.isdigit() else self.path

    def packages(self, key: Key) -> frozenset[str]:
        """The packages whose components the value at `key` means where others have the name, too.

        Those of the project, for a value of a recipe that comes with it: it goes on working whatever is installed.
        """
        folder = recipes_folder()
        if folder is None or self.origin(key) == COMMAND_LINE:
            return frozenset()
        return own_packages() if self._file(key).resolve().is_relative_to(folder.resolve()) else frozenset()

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = (), *, environment: bool = False) -> Recipe:
        """The recipe of a file or, where there is none, of a name that comes with specframe.

        Its parents are merged in, and `key=value` overrides applied.
        `environment` allows `${oc.env:NAME}` and OmegaConf's other resolvers. Raises RecipeError for a file that is
        missing, too large or no YAML mapping, for a circle of parents, and for an override that is not of the form
        key=value.
        """
        if not isinstance(path, str | Path):
            raise RecipeError(
                f"a recipe is a file or the name of one that comes with specframe, got {_kind(path)}; for parts in "
                "memory there is specframe.compose(target=..., drafter=...), which has a generate of its own"
            )
        if not isinstance(overrides, list | tuple) or not all(isinstance(each, str) for each in overrides):
            raise RecipeError(
                f'overrides are a list of texts, such as ["sampling.temperature=1"], got {_kind(overrides)}'
            )
        recipe = _read_file(_home(str(find_recipe(str(path))), str(path)), (), {})
        for override in overrides:
            recipe._override(override)
        if not recipe.data:
            raise RecipeError(f"{recipe.path}: the recipe is empty")
        recipe.data = interpolate(recipe.data, recipe.origin, environment)
        return recipe

    def holds(self, override: str) -> bool:
        """Returns whether an override is in effect: no later one has taken its section's place."""
        changed = deepcopy(self)
        changed._override(override)
        return bool(changed.data == self.data)

    def _override(self, override: str) -> None:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise RecipeError(f"{COMMAND_LINE}: '{override}' is not of the form key=value")
        try:
            value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index,call-overload]
        except (*UNREADABLE, RecursionError) as error:
            problem = SPACES if CRAMPED.search(text) else str(getattr(error, "problem", None) or error).splitlines()[0]
            raise RecipeError(f"{COMMAND_LINE}: the value of '{override}' is no YAML: {problem}") from error
        if (
            CRAMPED.search(text)
            and isinstance(value, dict)
            and any(":" in str(k) for k, v in value.items() if v is None)
        ):
            raise RecipeError(f"{COMMAND_LINE}: '{override}': {SPACES}")
        if name.strip() == "extends":
            raise RecipeError(f"{COMMAND_LINE}: a recipe extends others by its file alone: write one that does")
        parts: Key = tuple(int(p) if p.isdigit() else p for p in name.strip().split("."))
        layer: Any = value
        if parts[-1] == "use" and len(parts) > 1:
            layer, parts = {"use": value}, parts[:-1]
        try:
            self._set(parts, layer)
        except (IndexError, TypeError) as error:
            raise RecipeError(f"{COMMAND_LINE}: '{name}' does not exist in {self.path}") from error

    def _set(self, key: Key, value: Any) -> None:
        node: Any = self.data
        for part in key[:-1]:
            if isinstance(node, dict):
                if not isinstance(node.get(part), dict | list):
                    node[part] = {}
                node = node[part]
            else:
                node = node[part]
        last = key[-1]
        before = node.get(last) if isinstance(node, dict) else node[last]
        node[last] = _merged(before, value)
        self.origins = {k: v for k, v in self.origins.items() if k[: len(key)] != key or _has(self.data, k)}
        for deeper in [key, *_keys(value, key)]:
            self.origins[deeper] = COMMAND_LINE


def _read_file(path: Path, children: tuple[Path, ...], read: dict[Path, Recipe]) -> Recipe:
    """The recipe of a file with its parents merged in; `read` holds those of the files that were read before."""
    if path.resolve() in children:
        raise RecipeError(f"{path}: it extends itself, through {' -> '.join(c.name for c in children)}")
    if (known := read.get(path.resolve())) is not None:  # a parent of several parents
        return known
    if len(children) > DEEPEST:
        raise RecipeError(f"{path}: it is the parent of too many recipes, one of the other")
    source = read_source(path, quote=not children)
    recipe = Recipe(path, source.data, {key: f"{path}:{line}" for key, line in source.lines.items()})
    parents = recipe.data.pop("extends", None) or []
    if isinstance(parents, str):
        parents = [parents]
    origin = recipe.origin(("extends",))
    if not isinstance(parents, list) or not all(isinstance(p, str) and p.endswith(SUFFIXES) for p in parents):
        raise RecipeError(f"{origin}: extends names a recipe file or a list of them, which end in .yaml or .yml")
    merged = Recipe(path, {})
    for parent in parents:
        place = Path(normpath(path.parent / _home(parent, origin)))
        merged = _laid_over(merged, _read_file(place, (*children, path.resolve()), read))
    read[path.resolve()] = merged = _laid_over(merged, recipe)
    return merged


def _laid_over(below: Recipe, above: Recipe) -> Recipe:
    """The recipe `above`, with its missing values taken from `below`."""
    merged = _merged(below.data, above.data)
    origins = {k: v for k, v in (below.origins | above.origins).items() if _has(merged, k)}
    return Recipe(above.path, merged, origins)


def _home(path: str, origin: str) -> Path:
    """The path, a `~` at its beginning replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise RecipeError(f"{origin}: {path}: there is no such home folder") from error


def _merged(below: Any, above: Any) -> Any:
    """`above` laid over `below`; a section that changes `use` starts afresh: old options would not fit."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    if "use" in above and below.get("use", above["use"]) != above["use"]:
        return above
    result = dict(below)
    for key, value in above.items():
        result[key] = _merged(below[key], value) if key in below else value
    return result


def _keys(value: Any, prefix: Key = ()) -> list[Key]:
    """Returns every key below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [key for k, v in items for key in ((*prefix, k), *_keys(v, (*prefix, k)))]


def _has(data: Any, key: Key) -> bool:
    for part in key:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
