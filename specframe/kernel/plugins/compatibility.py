"""Which plugins fit this release: the version of specframe is the version of its plugin interface.

A plugin states what it needs where pip reads it, in its dependencies (`specframe>=0.1,<0.2`), and nowhere else: no
second number can disagree. pip checks it at installation; discovery checks it again, because `--no-deps`, editable
checkouts and later upgrades get past pip.
"""

from __future__ import annotations

from collections.abc import Iterable

from specframe.kernel.errors import PluginError

PACKAGE = "specframe"
LOWER = {">=": ">=", "~=": ">=", "==": ">=", ">": ">"}
"""The clauses that set a lower bound, and which."""


def require(requirements: Iterable[str], version: str, plugin: str) -> None:
    """Raises PluginError, with the way out, unless `version` of specframe is one that the requirements allow.

    `requirements` are a distribution's, as its metadata have them; those on other packages are pip's business.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    for requirement in map(Requirement, requirements):
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
        raise PluginError(f"needs {PACKAGE} {wanted}, this is {version}: pip install -U {outdated}")


def series(version: str) -> str:
    """The range of releases that keep the interface of this one: ">=0.1,<0.2", and from 1.0 on ">=1.2,<2".

    By semantic versioning a major release may change an interface; before 1.0 a minor one may.
    """
    from packaging.version import Version

    parsed = Version(version)
    major, minor = parsed.major, parsed.minor
    return f">={major}.{minor},<{major + 1}" if major else f">=0.{minor},<0.{minor + 1}"
