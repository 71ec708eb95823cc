"""A component's options, read from its constructor: the keyword-only signature is the schema."""

from __future__ import annotations

import inspect
import re
import types
import typing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union

from specframe.kernel import interfaces, layers, sampling, training
from specframe.kernel import types as values
from specframe.kernel.errors import PluginError
from specframe.recipes.registry import KINDS

REQUIRED: Any = inspect.Parameter.empty
_BY_PROTOCOL = {protocol: kind for kind, protocol in KINDS.items()}
_SECTION = re.compile(r"^(?:Args|Options|Attributes):\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
"""Matches the part of a docstring that describes the options."""


class Mismatch(ValueError):
    """A value that does not fit its option's type; the message states the expected type."""


@dataclass(frozen=True)
class Option:
    """One keyword argument of a constructor."""

    name: str
    annotation: Any
    default: Any
    help: str

    @property
    def required(self) -> bool:
        """True if a recipe must give it."""
        return self.default is REQUIRED

    @property
    def kind(self) -> str | None:
        """The kind of component of a nested `{use: ...}` section; None for other options."""
        return _BY_PROTOCOL.get(_bare(self.annotation))


def read_options(component: Any) -> dict[str, Option]:
    """The options of a class or function, by name.

    Raises PluginError for a signature that cannot be a schema: positional parameters, **kwargs, a missing
    annotation, or a type that a recipe cannot express.
    """
    owner = getattr(component, "__qualname__", repr(component))
    try:
        signature = inspect.signature(component)
    except (TypeError, ValueError) as error:
        raise PluginError(f"{owner}: it is no class or function whose signature can be read") from error
    hints = _hints(component)
    helps = _helps(inspect.getdoc(component) or "")
    found = {}
    for name, parameter in signature.parameters.items():
        where = f"{owner}({name})"
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise PluginError(f"{where}: options must be keyword-only parameters")
        if name not in hints:
            raise PluginError(f"{where}: an option needs a type annotation")
        if not _expressible(hints[name]):
            raise PluginError(f"{where}: a recipe cannot express {hints[name]}")
        found[name] = Option(name, hints[name], parameter.default, helps.get(name, ""))
    return found


def convert(value: Any, annotation: Any) -> Any:
    """Converts the recipe's value to the option's type. Raises Mismatch if it does not fit."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments)
    if origin is Literal:
        if value in arguments:
            return value
        raise Mismatch(f"expected one of {', '.join(map(repr, arguments))}, not {value!r}")
    if origin in (list, tuple):
        return _convert_sequence(value, origin, arguments)
    if origin is dict:
        if isinstance(value, dict):
            return {str(k): convert(v, arguments[1]) for k, v in value.items()}
        raise Mismatch(f"expected a mapping, not {value!r}")
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        names = [member.name.lower() for member in annotation]
        if isinstance(value, str) and value.lower() in names:
            return annotation[value.upper()]
        raise Mismatch(f"expected one of {', '.join(names)}, not {value!r}")
    return _convert_scalar(value, annotation)


def describe(annotation: Any) -> str:
    """A description of the type for documentation and errors."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if a is type(None) else describe(a) for a in arguments)
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin in (list, tuple):
        return f"list of {describe(arguments[0])}"
    if origin is dict:
        return "mapping"
    if annotation in _BY_PROTOCOL:
        return f"{_BY_PROTOCOL[annotation]} section"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(member.name.lower() for member in annotation)
    return {int: "integer", float: "number", bool: "true or false", str: "text", Path: "path"}.get(
        annotation, str(annotation)
    )


def _convert_union(value: Any, arguments: tuple[Any, ...]) -> Any:
    if value is None and type(None) in arguments:
        return None
    problems = []
    for argument in arguments:
        if argument is not type(None):
            try:
                return convert(value, argument)
            except Mismatch as mismatch:
                problems.append(str(mismatch))
    raise Mismatch("; or ".join(problems))


def _convert_sequence(value: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, list):
        raise Mismatch(f"expected a list, not {value!r}")
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise Mismatch(f"expected {len(arguments)} values, not {len(value)}")
        return tuple(convert(v, a) for v, a in zip(value, arguments, strict=True))
    return origin(convert(v, arguments[0]) for v in value)


def _convert_scalar(value: Any, annotation: Any) -> Any:
    if annotation is bool and isinstance(value, bool):
        return value
    if annotation is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if annotation is str and isinstance(value, str):
        return value
    if annotation is Path and isinstance(value, str):
        try:
            return Path(value).expanduser()
        except RuntimeError as error:
            raise Mismatch(f"{value}: there is no such home folder") from error
    raise Mismatch(f"expected {describe(annotation)}, not {value!r}")


def _bare(annotation: Any) -> Any:
    """The annotation without `| None`."""
    arguments = [a for a in typing.get_args(annotation) if a is not type(None)]
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    return arguments[0] if is_union and len(arguments) == 1 else annotation


def _expressible(annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal or annotation in (Any, type(None), Ellipsis):
        return True
    if origin in (Union, types.UnionType, list, tuple, dict):
        return all(_expressible(a) for a in arguments)
    if annotation in _BY_PROTOCOL or annotation in (int, float, bool, str, Path):
        return True
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def _hints(component: Any) -> dict[str, Any]:
    """Type hints, resolved even if a module imports kernel names only for type checking."""
    function = component.__init__ if inspect.isclass(component) else component
    kernel: dict[str, Any] = {"Path": Path}
    for module in (values, sampling, interfaces, training, layers):
        kernel |= vars(module)
    try:
        return typing.get_type_hints(function, {**kernel, **getattr(function, "__globals__", {})})
    except NameError as error:
        raise PluginError(f"{component.__qualname__}: the annotation {error.name!r} is not known") from error
    except (AttributeError, SyntaxError, TypeError) as error:
        raise PluginError(f"{component.__qualname__}: an annotation cannot be read: {error}") from error


def about(docstring: str) -> str:
    """A component's docstring without its section of options."""
    return _SECTION.sub("", docstring + "\n").strip()


def _helps(docstring: str) -> dict[str, str]:
    """The description of each name in the docstring's Args (or Options) section."""
    match = _SECTION.search(docstring + "\n")
    if not match:
        return {}
    block = inspect.cleandoc("\n" + match[1])
    items = re.findall(r"^(\w+)(?: \([^)]*\))?: (.*(?:\n[ \t]+.*)*)", block, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in items}
