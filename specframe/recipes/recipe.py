"""A recipe: its files' data with command-line overrides and resolved references, and the origin of every value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.kernel.errors import RecipeError
from specframe.recipes.source import UNREADABLE, Key, has, keys, merged, read_source

COMMAND_LINE = "command line"
CRAMPED = re.compile(r"[{,]\s*\w+:[^\s/]")
"""Matches an entry of a YAML mapping that lacks the space after its colon."""
SPACES = "put a space after each colon, as in {use: none}"


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
        """The place where the value at `key`, or the nearest enclosing section, was written: "file:line"."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, str(self.path))

    def overridden(self, key: Key) -> bool:
        """Returns whether the value at `key`, or an enclosing section, was given on the command line."""
        return self.origin(key) == COMMAND_LINE

    def file(self, key: Key) -> Path:
        """The file that contains the value at `key`; the recipe's own file for a value of the command line."""
        written, _, line = self.origin(key).rpartition(":")
        return Path(written) if line.isdigit() else self.path

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = (), *, environment: bool = False) -> Recipe:
        """Reads the recipe in a file or, without such a file, one of specframe's own recipes by name.

        Its parents are merged in, and `key=value` overrides applied.
        `environment` allows `${oc.env:NAME}` and OmegaConf's other resolvers. Raises RecipeError for a file that is
        missing, too large or not a YAML mapping, for a cycle of parents, and for an override that is not of the form
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
        source = read_source(str(path))
        recipe = Recipe(source.path, source.data, source.origins)
        for override in overrides:
            recipe._override(override)
        if not recipe.data:
            raise RecipeError(f"{recipe.path}: the recipe is empty")
        recipe.data = interpolate(recipe.data, recipe.origin, environment)
        return recipe

    def holds(self, override: str) -> bool:
        """Returns whether an override is in effect: no later one has replaced its section."""
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
        node[last] = merged(before, value)
        self.origins = {k: v for k, v in self.origins.items() if k[: len(key)] != key or has(self.data, k)}
        for deeper in [key, *keys(value, key)]:
            self.origins[deeper] = COMMAND_LINE


BEGIN = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
"""Matches the beginning of an interpolation that is not escaped by a backslash."""
REFERENCE = re.compile(r"\$\{\s*(\.*)([\w$-]+(?:\.[\w$-]+|\[[\w$-]+\])*)\s*\}")
"""Matches an interpolation that refers to a value of the recipe: leading dots count sections upwards."""
LONGEST = 2**22
"""The most characters of a recipe with its interpolations expanded."""


def interpolate(data: dict[str, Any], origin: Callable[[Key], str], environment: bool) -> dict[str, Any]:
    """Resolves the data's interpolations; `environment` allows OmegaConf's resolvers, such as `oc.env`.

    Raises RecipeError, with the origin of the value, for a reference that cannot be resolved or is not allowed.
    """
    if not environment:
        _Expansion(data, origin).measure((), data)
    try:
        return OmegaConf.to_container(OmegaConf.create(data), resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        key: Key = tuple(re.findall(r"[^.\[\]]+", str(getattr(error, "full_key", None) or "")))
        raise RecipeError(f"{origin(key)}: {str(error).splitlines()[0]}") from error


class _Expansion:
    """Computes the size of a recipe with expanded references, without expanding them."""

    def __init__(self, data: dict[str, Any], origin: Callable[[Key], str]) -> None:
        self.data, self.origin = data, origin
        self.sizes: dict[Key, int] = {}
        self.open: set[Key] = set()

    def measure(self, key: Key, value: Any) -> int:
        """The number of characters of the expanded value at a key."""
        if key in self.sizes:
            return self.sizes[key]
        if key in self.open:
            raise self._error(key, "it refers to itself")
        self.open.add(key)
        if isinstance(value, dict):
            size = sum(len(str(name)) + self.measure((*key, name), entry) for name, entry in value.items())
        elif isinstance(value, list):
            size = sum(self.measure((*key, index), entry) for index, entry in enumerate(value))
        else:
            size = self._measure_text(key, value) if isinstance(value, str) else 1
        self.open.remove(key)
        if size > LONGEST:
            raise self._error(
                key, f"it is too long once its references are written out: more than {LONGEST} characters"
            )
        self.sizes[key] = size
        return size

    def _measure_text(self, key: Key, text: str) -> int:
        size = len(text)
        for begin in BEGIN.finditer(text):
            found = REFERENCE.match(text, begin.end() - 2)
            if found is None:
                raise self._error(
                    key,
                    "only ${section.key} can stand here, another value of the recipe; --allow-env allows "
                    "${oc.env:NAME} and OmegaConf's other resolvers",
                )
            dots = len(found[1])
            steps = re.findall(r"[\w$-]+", found[2])
            place, value = self._find((*(key[:-dots] if dots else ()), *steps))
            size += self.measure(place, value)
        return size

    def _find(self, steps: tuple[str | int, ...]) -> tuple[Key, Any]:
        """The key and value at the end of the steps; an empty text if there is none, for which OmegaConf raises."""
        key: Key = ()
        value: Any = self.data
        for step in steps:
            if isinstance(value, list) and str(step).isdigit() and int(step) < len(value):
                step = int(step)
            elif isinstance(value, dict):
                step = next((name for name in value if str(name) == str(step)), step)
                if step not in value:
                    return (*key, step, ""), ""
            else:
                return (*key, step, ""), ""
            key, value = (*key, step), value[step]
        return key, value

    def _error(self, key: Key, message: str) -> RecipeError:
        return RecipeError(f"{self.origin(key)}: {'.'.join(map(str, key))}: {message}")
