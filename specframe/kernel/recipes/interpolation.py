"""`${section.key}` in a recipe: another value of the same recipe, and nothing else unless that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.kernel.errors import RecipeError
from specframe.kernel.recipes.source import Key

BEGIN = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
"""Where an interpolation begins; behind a backslash it is text."""
REFERENCE = re.compile(r"\$\{\s*(\.*)([\w$-]+(?:\.[\w$-]+|\[[\w$-]+\])*)\s*\}")
"""An interpolation that stands for a value of the recipe: dots at its start count sections upwards."""
LONGEST = 2**22
"""Characters of a recipe once its interpolations are written out."""


def interpolate(data: dict[str, Any], origin: Callable[[Key], str], environment: bool) -> dict[str, Any]:
    """The data with its interpolations resolved; `environment` allows OmegaConf's resolvers, such as `oc.env`.

    Raises RecipeError, with the origin of the value, for what does not resolve or is not allowed.
    """
    if not environment:
        _Expansion(data, origin).measure((), data)
    try:
        return OmegaConf.to_container(OmegaConf.create(data), resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        key: Key = tuple(re.findall(r"[^.\[\]]+", str(getattr(error, "full_key", None) or "")))
        raise RecipeError(f"{origin(key)}: {str(error).splitlines()[0]}") from error


class _Expansion:
    """Counts what a recipe's references come to without following them all."""

    def __init__(self, data: dict[str, Any], origin: Callable[[Key], str]) -> None:
        self.data, self.origin = data, origin
        self.sizes: dict[Key, int] = {}
        self.open: set[Key] = set()

    def measure(self, key: Key, value: Any) -> int:
        """The characters that the value at a key comes to."""
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
