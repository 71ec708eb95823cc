"""Versions of the plugin interface: the plugins that fit this release, and renamed options.

The version of specframe is the version of its plugin interface.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from specframe._version import __version__
from specframe.kernel.errors import PluginError

PACKAGE = "specframe"
MERGED = {
    "specframe-dflash": "specframe-blocks",
    "specframe-llamacpp": "specframe-scaling[llamacpp]",
    "specframe-mtp": "specframe-blocks",
    "specframe-vocabularies": "specframe-models",
}
"""Packages of release 0.2, and the packages that now have their components."""
LOWER = {">=": ">=", "~=": ">=", "==": ">=", ">": ">"}
"""The operators that set a lower bound, and the bound's own operator."""


def require(requirements: Iterable[str], version: str, plugin: str) -> None:
    """Raises PluginError, with a remedy, unless the requirements allow this `version` of specframe.

    `requirements` are those in a distribution's metadata; requirements on other packages are ignored.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    for requirement in map(Requirement, (text for text in requirements if text.lower().startswith(PACKAGE))):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) != PACKAGE or not applies:
            continue
        wanted = requirement.specifier
        if wanted.contains(version, prereleases=True):
            continue
        floors = (
            f"{LOWER[part.operator]}{part.version.removesuffix('.*')}" for part in wanted if part.operator in LOWER
        )
        outdated = plugin if SpecifierSet(",".join(floors)).contains(version, prereleases=True) else PACKAGE
        remedy = f"pip install -U {outdated}"
        if plugin in MERGED:
            remedy = f"its components are in {MERGED[plugin]} now: pip uninstall {plugin}"
        raise PluginError(f"needs {PACKAGE} {wanted}, this is {version}: {remedy}")


def release_hint(error: BaseException, package: str) -> str:
    """A remedy for a plugin that imports a name that this release does not have, or an empty string."""
    missing = error.name if isinstance(error, ImportError) else None
    if (missing or "").split(".")[0] != PACKAGE:
        return ""
    return f"; it was written for another release than {__version__}: pip install -U {package}"


@cache
def own_packages() -> frozenset[str]:
    """The packages whose components specframe's recipes use: the core, and those of the extra `methods`."""
    return frozenset({PACKAGE, *_methods()})


def missing_methods() -> list[str]:
    """The packages of the extra `methods` that are not installed: the recipes' plugins, and their weights."""
    return [name for name in _methods() if installed(name) is None]


def installed(package: str) -> str | None:
    """The version of a package, or None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _methods() -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(text) for text in requires(PACKAGE) or ()]
    except PackageNotFoundError:  # a checkout on the path, without an installation
        return []
    marked = [(each.name, each.marker) for each in wanted if each.marker is not None]
    return [name for name, on in marked if not on.evaluate({"extra": ""}) and on.evaluate({"extra": "methods"})]


def series(version: str) -> str:
    """The range of releases with the interface of this one: ">=0.1,<0.2", and from 1.0 on ">=1.2,<2".

    By semantic versioning a major release may change an interface; before 1.0 a minor one may.
    """
    from packaging.version import Version

    parsed = Version(version)
    major, minor = parsed.major, parsed.minor
    return f">={major}.{minor},<{major + 1}" if major else f">=0.{minor},<0.{minor + 1}"


@dataclass(frozen=True)
class Renamed:
    """Marker of an old name: the new name, and the release that removes the old name.

    A component's old name is registered in addition to the new one, with `renamed=Renamed("new", until="0.4")`. An old
    option is an entry of its component's class attribute `renamed`: `renamed = {"old": Renamed("new", until="0.4")}`.
    """

    new: str
    until: str

    def warn(self, old: str) -> None:
        """Issues a FutureWarning, since a DeprecationWarning would reach only developers."""
        message = f"{old} is now called '{self.new}'; the old name will be gone in {self.until}"
        warnings.warn(message, FutureWarning, stacklevel=2)


def current_name(name: str, component: Any, where: str) -> str:
    """The current name of a component's option that a recipe calls `name`; warns if that is an old name.

    `where` is the place in the recipe: "recipe.yaml:4: tree.budget".
    """
    renamed: Mapping[str, Renamed] = getattr(component, "renamed", {})
    if name not in renamed:
        return name
    renamed[name].warn(where)
    return renamed[name].new
