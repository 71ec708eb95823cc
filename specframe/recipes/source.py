"""The YAML files of a recipe as plain data: a file merged over its parents, and the origin of every value."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.kernel.errors import RecipeError
from specframe.recipes.folders import find_recipe

Key = tuple[str | int, ...]
"""The path to a value: ("loss", 0, "weight")."""

LARGEST = 2**20
"""The most bytes of a recipe file."""
MOST = 100_000
"""The most values of a recipe with its aliases expanded."""
DEEPEST = 50
"""The most levels of nested sections."""
SUFFIXES = (".yaml", ".yml")
"""Suffixes of parents' names: a recipe cannot cause any other file to be opened."""
MOST_PARENTS = 20
"""The most generations of parents of a recipe."""
UNREADABLE = (yaml.YAMLError, OmegaConfBaseException, ValueError, LookupError, TypeError, AttributeError)
"""Errors that reading YAML raises: its own, and Python's for a value that does not fit its tag or is too long."""


@dataclass(frozen=True)
class Source:
    """A file's data, perhaps merged over that of its parents."""

    path: Path
    data: dict[str, Any]
    origins: dict[Key, str]
    """The place of each value, "file:line"; OmegaConf does not keep the lines."""

    def over(self, base: Source) -> Source:
        """Merges this source over a base, which provides missing values."""
        data = merged(base.data, self.data)
        origins = {k: v for k, v in (base.origins | self.origins).items() if has(data, k)}
        return Source(self.path, data, origins)


def read_source(name: str) -> Source:
    """Reads the file of a path or a recipe's name, merged over its parents.

    Raises RecipeError for a file that is missing, too large or not a YAML mapping, and for a cycle of parents.
    """
    return _read_family(_home(str(find_recipe(name)), name), (), {})


def _read_family(path: Path, children: tuple[Path, ...], read: dict[Path, Source]) -> Source:
    """Reads a file merged over its parents; `read` caches the files read so far."""
    if path.resolve() in children:
        raise RecipeError(f"{path}: it extends itself, through {' -> '.join(c.name for c in children)}")
    if (known := read.get(path.resolve())) is not None:  # a parent of several parents
        return known
    if len(children) > MOST_PARENTS:
        raise RecipeError(f"{path}: it is the parent of too many recipes, one of the other")
    own = _read_file(path, quote=not children)
    parents = own.data.pop("extends", None) or []
    if isinstance(parents, str):
        parents = [parents]
    origin = own.origins.get(("extends",), str(path))
    if not isinstance(parents, list) or not all(isinstance(p, str) and p.endswith(SUFFIXES) for p in parents):
        raise RecipeError(f"{origin}: extends names a recipe file or a list of them, which end in .yaml or .yml")
    base = Source(path, {}, {})
    for parent in parents:
        place = Path(normpath(path.parent / _home(parent, origin)))
        base = _read_family(place, (*children, path.resolve()), read).over(base)
    read[path.resolve()] = family = own.over(base)
    return family


def _home(path: str, origin: str) -> Path:
    """The path, with a leading `~` replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise RecipeError(f"{origin}: {path}: there is no such home folder") from error


def _read_file(path: Path, quote: bool) -> Source:
    """The mapping in a YAML file. Raises RecipeError, with the line, for any other file.

    Without `quote` the error shows none of the file's contents, since it may not be a recipe at all.
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
    return Source(path, data, {key: f"{path}:{line}" for key, line in _lines(node).items()})


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
    """A file's nodes, a graph because of aliases; their size is computed as if each alias were expanded."""

    path: Path
    sizes: dict[yaml.Node, int] = field(default_factory=dict)
    open: set[yaml.Node] = field(default_factory=set)
    """The nodes that enclose the current one."""

    def measure(self, node: yaml.Node | None) -> int:
        """The number of values in a node. Raises RecipeError if there are too many, or a key is not a plain name."""
        if node is None or node in self.sizes:
            return 0 if node is None else self.sizes[node]
        if node in self.open:
            raise self._error(node, "an alias stands for something that it is a part of")
        if len(self.open) > DEEPEST:
            raise self._error(node, "it is nested too deeply for a recipe")
        self.open.add(node)
        size = 1 + sum(map(self.measure, self._children(node)))
        self.open.remove(node)
        if size > MOST:
            raise self._error(node, f"it is too large for a recipe: more than {MOST} values")
        self.sizes[node] = size
        return size

    def _children(self, node: yaml.Node) -> list[yaml.Node]:
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


def merged(base: Any, override: Any) -> Any:
    """Merges `override` over `base`; a section that changes `use` replaces the old one, whose options would not fit."""
    if not isinstance(base, dict) or not isinstance(override, dict):
        return override
    if "use" in override and base.get("use", override["use"]) != override["use"]:
        return override
    result = dict(base)
    for key, value in override.items():
        result[key] = merged(base[key], value) if key in base else value
    return result


def keys(value: Any, prefix: Key = ()) -> list[Key]:
    """Returns every key below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [key for k, v in items for key in ((*prefix, k), *keys(v, (*prefix, k)))]


def has(data: Any, key: Key) -> bool:
    """Returns whether there is a value at a key."""
    for part in key:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
