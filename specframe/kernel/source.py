"""A recipe's YAML as plain data: the line of every key, and `${section.key}` replaced by the recipe's values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.kernel.errors import RecipeError

Key = tuple[str | int, ...]
"""The path to a value: ("loss", 0, "weight")."""

LARGEST = 2**20
"""Bytes of a recipe's file."""
MOST = 100_000
"""Values of a recipe once its aliases are written out."""
DEEPEST = 50
"""Levels of sections within sections."""
UNREADABLE = (yaml.YAMLError, OmegaConfBaseException, ValueError, LookupError, TypeError, AttributeError)
"""Errors that YAML raises: its own, and those of Python for a value that its tag does not fit or that is too long."""


@dataclass(frozen=True)
class Source:
    """The text of a file."""

    data: dict[str, Any]
    lines: dict[Key, int]
    """The line each key stands on; OmegaConf does not keep them."""


def read_source(path: Path, quote: bool = True) -> Source:
    """The mapping in a YAML file. Raises RecipeError for a file that is none, with the line.

    Without `quote` the error shows none of the file's contents: it may not be meant as a recipe.
    """
    text = _read_text(path)
    try:
        node = yaml.compose(text)
        tree = _Tree(path)
        tree.measure(node)
        if not isinstance(node, yaml.MappingNode | None):  # OmegaConf makes a mapping of a text, too
            raise RecipeError(f"{path}: a recipe is a mapping of sections (target, drafter, tree, verifier, ...)")
        data: Any = OmegaConf.to_container(OmegaConf.create(text)) if text.strip() else {}
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise RecipeError(f"{path}{line}: not valid YAML" + (f": {problem}" if quote else "")) from error
    except RecursionError as error:
        raise RecipeError(f"{path}: it is nested too deeply for a recipe") from error
    return Source(data, _lines(node))


def _read_text(path: Path) -> str:
    try:
        if not path.exists():
            what = "recipe" if path.suffix in (".yaml", ".yml") else "recipe or model"
            raise RecipeError(f"{path}: no such {what}; is the path right?")
        if path.is_dir() and path.suffix not in (".yaml", ".yml"):
            raise RecipeError(f"{path}: neither a recipe nor a model: the folder has no config.json and no .gguf file")
        if not path.is_file():
            raise RecipeError(f"{path}: a recipe is a regular file; this is a folder, a device or a pipe")
        if path.stat().st_size > LARGEST:
            raise RecipeError(f"{path}: it is too large for a recipe: more than {LARGEST >> 10} KiB")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: cannot be read: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise RecipeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


@dataclass
class _Tree:
    """A file's nodes, a graph because of aliases: measured, node by node, as if each alias were written out."""

    path: Path
    sizes: dict[yaml.Node, int] = field(default_factory=dict)
    open: set[yaml.Node] = field(default_factory=set)
    """The nodes around the one that is measured."""

    def measure(self, node: yaml.Node | None) -> int:
        """The values in a node. Raises RecipeError where there are too many, or a key is no plain name."""
        if node is None or node in self.sizes:
            return 0 if node is None else self.sizes[node]
        if node in self.open:
            raise self._error(node, "an alias stands for something that it is a part of")
        if len(self.open) > DEEPEST:
            raise self._error(node, "it is nested too deeply for a recipe")
        self.open.add(node)
        size = 1 + sum(map(self.measure, self._below(node)))
        self.open.remove(node)
        if size > MOST:
            raise self._error(node, f"it is too large for a recipe: more than {MOST} values")
        self.sizes[node] = size
        return size

    def _below(self, node: yaml.Node) -> list[yaml.Node]:
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        if not isinstance(node, yaml.MappingNode):
            self._require_unicode(node)
            return []
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise self._error(name, "a key must be a plain name")
            self._require_unicode(name)
        return [value for _, value in node.value]

    def _require_unicode(self, node: yaml.Node) -> None:
        try:
            str(node.value).encode("utf-8")
        except UnicodeEncodeError:
            raise self._error(node, "a text holds half a character, so it is no Unicode text") from None

    def _error(self, node: yaml.Node, message: str) -> RecipeError:
        return RecipeError(f"{self.path}:{node.start_mark.line + 1}: {message}")


def _lines(node: yaml.Node | None, prefix: Key = ()) -> dict[Key, int]:
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


BEGIN = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
"""Matches the beginning of an interpolation; behind a backslash it is text."""
REFERENCE = re.compile(r"\$\{\s*(\.*)([\w$-]+(?:\.[\w$-]+|\[[\w$-]+\])*)\s*\}")
"""An interpolation that stands for a value of the recipe: dots at its start count sections upwards."""
LONGEST = 2**22
"""Characters of a recipe once its interpolations are written out."""


def interpolate(data: dict[str, Any], origin: Callable[[Key], str], environment: bool) -> dict[str, Any]:
    """The data with its interpolations resolved; `environment` allows OmegaConf's resolvers, such as `oc.env`.

    Raises RecipeError, with the origin of the value, for a reference that does not resolve or is not allowed.
    """
    if not environment:
        _Expansion(data, origin).measure((), data)
    try:
        return OmegaConf.to_container(OmegaConf.create(data), resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        key: Key = tuple(re.findall(r"[^.\[\]]+", str(getattr(error, "full_key", None) or "")))
        raise RecipeError(f"{origin(key)}: {str(error).splitlines()[0]}") from error


class _Expansion:
    """Computes the size of a recipe's expanded references without following them all."""

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
            there, value = self._find((*(key[:-dots] if dots else ()), *steps))
            size += self.measure(there, value)
        return size

    def _find(self, steps: tuple[str | int, ...]) -> tuple[Key, Any]:
        """The key and the value that the steps lead to, or an empty text where there is none: OmegaConf then raises."""
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
