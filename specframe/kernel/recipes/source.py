"""A recipe's YAML as plain data, with the line of every key; nothing in a file can make reading it expensive."""

from __future__ import annotations

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
"""What YAML raises: its own errors, and those of Python for a value that its tag does not fit or that is too long."""


@dataclass(frozen=True)
class Source:
    """The text of a file."""

    data: dict[str, Any]
    lines: dict[Key, int]
    """The line each key stands on; OmegaConf does not keep them."""


def read_source(path: Path, quote: bool = True) -> Source:
    """The mapping in a YAML file. Raises RecipeError for a file that is none, with the line.

    Without `quote` the error shows nothing of what is in the file: it may not be meant as a recipe.
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
            raise RecipeError(f"{path}: no such recipe; is the path right?")
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
    """A file's nodes, of which aliases make a graph: measured, node by node, as if each alias were written out."""

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
