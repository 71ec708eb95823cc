"""A recipe: YAML, its parents, overrides from the command line, and where every value came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.kernel.errors import RecipeError

Key = tuple[str | int, ...]
"""The path to a value: ("loss", 0, "weight")."""

COMMAND_LINE = "command line"


def dotted(key: Key) -> str:
    """The key as recipes and messages write it: loss.0.weight."""
    return ".".join(map(str, key))


@dataclass
class Recipe:
    """A recipe's data, with the origin of every value."""

    path: Path
    data: dict[str, Any]
    origins: dict[Key, str] = field(default_factory=dict)

    def origin(self, key: Key) -> str:
        """Where the value at `key`, or the nearest section above it, was written: "file:line"."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, str(self.path))

    @classmethod
    def read(cls, path: str | Path, overrides: list[str] | None = None) -> Recipe:
        """The recipe in a file, its parents merged in and `key=value` overrides applied.

        Raises RecipeError for a file that is missing or no YAML mapping, for a circle of parents, and
        for an override that is not of the form key=value.
        """
        recipe = _read_file(Path(path), ())
        for override in overrides or []:
            recipe._override(override)
        recipe._interpolate()
        return recipe

    def _override(self, override: str) -> None:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise RecipeError(f"{COMMAND_LINE}: '{override}' is not of the form key=value")
        try:
            value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index,call-overload]
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise RecipeError(f"{COMMAND_LINE}: the value of '{override}' is no YAML: {error}") from error
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

    def _interpolate(self) -> None:
        try:
            self.data = OmegaConf.to_container(OmegaConf.create(self.data), resolve=True)  # type: ignore[assignment]
        except OmegaConfBaseException as error:
            raise RecipeError(f"{self.path}: {str(error).splitlines()[0]}") from error


def _read_file(path: Path, children: tuple[Path, ...]) -> Recipe:
    if path.resolve() in children:
        raise RecipeError(f"{path}: it extends itself, through {' -> '.join(c.name for c in children)}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe; is the path right?") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    try:
        lines = _lines(yaml.compose(text))
        data: Any = OmegaConf.to_container(OmegaConf.create(text)) if text.strip() else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    except OmegaConfBaseException as error:
        raise RecipeError(f"{path}: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of sections (target, drafter, tree, verifier, ...)")
    recipe = Recipe(path, data, {key: f"{path}:{line}" for key, line in lines.items()})
    parents = recipe.data.pop("extends", None) or []
    if isinstance(parents, str):
        parents = [parents]
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise RecipeError(
            f"{recipe.origin(('extends',))}: extends names a recipe file or a list of them, not {parents!r}"
        )
    merged = Recipe(path, {})
    for parent in parents:
        merged = _laid_over(merged, _read_file(Path(normpath(path.parent / parent)), (*children, path.resolve())))
    return _laid_over(merged, recipe)


def _laid_over(below: Recipe, above: Recipe) -> Recipe:
    """The recipe `above` with what it leaves open taken from `below`."""
    merged = _merged(below.data, above.data)
    origins = {k: v for k, v in (below.origins | above.origins).items() if _has(merged, k)}
    return Recipe(above.path, merged, origins)


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
    """Every key below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [key for k, v in items for key in ((*prefix, k), *_keys(v, (*prefix, k)))]


def _has(data: Any, key: Key) -> bool:
    for part in key:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _lines(node: yaml.Node | None, prefix: Key = ()) -> dict[Key, int]:
    """The line each key stands on; OmegaConf does not keep them."""
    found: dict[Key, int] = {}
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            found[(*prefix, name.value)] = name.start_mark.line + 1
            found |= _lines(value, (*prefix, name.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            found[(*prefix, index)] = value.start_mark.line + 1
            found |= _lines(value, (*prefix, index))
    return found
