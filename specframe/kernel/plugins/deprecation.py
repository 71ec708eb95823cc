"""Names that have changed: an old one works for at least one minor release more, and names its replacement."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Renamed:
    """That a name is an old one: what it is called now, and the release that takes the old name away.

    A component's old name is registered together with the new one, with `renamed=Renamed("new", until="0.3")`. An old
    option stands in the class attribute `renamed` of its component: `renamed = {"old": Renamed("new", until="0.3")}`.
    """

    new: str
    until: str

    def warn(self, old: str) -> None:
        """Warns the user by a FutureWarning: a DeprecationWarning would reach developers only."""
        message = f"{old} is now called '{self.new}'; the old name will be gone in {self.until}"
        warnings.warn(message, FutureWarning, stacklevel=2)


def current_name(name: str, component: Any, where: str) -> str:
    """The option of a component that a recipe means by `name`; warns if that is an old name.

    `where` is the place in the recipe: "recipe.yaml:4: tree.budget".
    """
    renamed: Mapping[str, Renamed] = getattr(component, "renamed", {})
    if name not in renamed:
        return name
    renamed[name].warn(where)
    return renamed[name].new
