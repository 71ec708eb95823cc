"""Coverage of compositions: every component, and every two of different kinds that compose, in few recipes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any

from specframe.kernel.composition import misfits
from specframe.recipes.registry import Registry
from specframe.testing.sections import INNER, Section, Sections, inside

Component = tuple[str, str]
"""The kind and name of a component."""
Pair = tuple[Component, Component]

DRAWN = ("drafter", "tree", "verifier", *INNER)
"""The kinds of components that decode."""


@dataclass(frozen=True)
class CoverageCase:
    """A recipe with the smallest forms of its components, and which components these are."""

    recipe: dict[str, Any]
    components: tuple[Component, ...]

    @property
    def names(self) -> dict[str, str | None]:
        """Its components by kind, to draw further recipes of them; a tree of None where it has none."""
        return {"tree": None, **dict(reversed(self.components))}

    @cached_property
    def pairs(self) -> set[Pair]:
        """Two components of different kinds each."""
        return set(pairs_of(self.components))


def pairs_of(components: Sequence[Component]) -> Iterator[Pair]:
    """Yields every two of the components that are of different kinds."""
    for one, other in combinations(sorted(set(components)), 2):
        if one[0] != other[0]:
            yield one, other


def recipe_of(
    drafter: Section, tree: Section | None, verifier: Section, sampling: Section | None = None
) -> dict[str, Any]:
    """A recipe's data from its sections, over a small table."""
    found: dict[str, Any] = {"specframe": 1, "target": {"use": "table", "vocab": 3}, "drafter": drafter}
    if tree is not None:
        found["tree"] = tree
    return found | {"verifier": verifier, "sampling": sampling or {"temperature": 1.0}}


@dataclass(frozen=True)
class _Form:
    """A component that is built, with its section and all components in it."""

    section: Section
    built: Any
    components: tuple[Component, ...]


@dataclass(frozen=True)
class Coverage:
    """The compositions of a registry's components.

    Args:
        registry: what is installed.
        given: values of options whose types leave them open, as `recipes` takes them.
        package: compositions with a component of this package alone; all where it is None.
    """

    registry: Registry
    given: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    package: str | None = None

    @cached_property
    def sections(self) -> Sections:
        """The sections of the registry's components."""
        return Sections(self.registry, self.given)

    @cached_property
    def components(self) -> set[Component]:
        """The components that decode; of the package alone, if there is one."""
        entries = (entry for kind in DRAWN for entry in self.registry.of(kind))
        return {(e.kind, self.sections.name_of(e)) for e in entries if self.package in (None, e.package)}

    @cached_property
    def compositions(self) -> list[CoverageCase]:
        """Every drafter, with what can stand inside of it, over every tree under every verifier, where they fit."""
        forms = {kind: list(self._forms(kind)) for kind in ("drafter", "tree", "verifier")}
        found = []
        for drafter, tree, verifier in product(forms["drafter"], [None, *forms["tree"]], forms["verifier"]):
            chosen = [form for form in (drafter, tree, verifier) if form is not None]
            components = tuple(each for form in chosen for each in form.components)
            policy, grown = (None, None) if tree is None else (tree.built, tree.section)
            names = drafter.section["use"], verifier.section["use"]
            if self.components.isdisjoint(components) or any(
                misfits(drafter.built, policy, verifier.built, names=names)
            ):
                continue
            found.append(CoverageCase(recipe_of(drafter.section, grown, verifier.section), components))
        return found

    def _forms(self, kind: str) -> Iterator[_Form]:
        for name in self.sections.names(kind):
            for section in self.sections.forms(kind, name):
                components = tuple(inside(section, kind, self.sections))
                yield _Form(section, self.sections.build(kind, section), components)

    def components_of(self, recipe: Mapping[str, Any]) -> tuple[Component, ...]:
        """The components of a recipe, those inside of others too."""
        parts = {kind: recipe[kind] for kind in ("drafter", "tree", "verifier") if kind in recipe}
        return tuple(each for kind, section in parts.items() for each in inside(section, kind, self.sections))

    @cached_property
    def pairs(self) -> set[Pair]:
        """Every two components of different kinds that compose."""
        return {pair for case in self.compositions for pair in case.pairs if self.components & set(pair)}

    @cached_property
    def cases(self) -> list[CoverageCase]:
        """Few of the compositions that have every pair: for each pair in turn the one with the most others left."""
        holders = defaultdict[Pair, list[CoverageCase]](list)
        for case in self.compositions:
            for pair in case.pairs & self.pairs:
                holders[pair].append(case)
        left, found = set(self.pairs), list[CoverageCase]()
        for pair in sorted(self.pairs):
            if pair in left:
                best = max(holders[pair], key=lambda case: len(case.pairs & left))
                found.append(best)
                left -= best.pairs
        return found

    @cached_property
    def few(self) -> list[CoverageCase]:
        """Fewer of the cases, which have every component."""
        left, found = {each for case in self.cases for each in case.components} & self.components, list[CoverageCase]()
        while left:
            best = max(self.cases, key=lambda case: len(left.intersection(case.components)))
            found.append(best)
            left.difference_update(best.components)
        return found

    @property
    def missing(self) -> set[Component]:
        """The components that compose with nothing: no values of their options' types can be built."""
        return self.components - {component for case in self.compositions for component in case.components}


def summary(drawn: Sequence[tuple[bool, int, Sequence[Component]]]) -> str:
    """Recipes in one line: how many decoded, by how many branches, and how many components and pairs they had.

    Each is whether it decoded, how many branches were run, and its components.
    """
    decoded = [(branches, [(kind, name) for kind, name in found]) for fine, branches, found in drawn if fine]
    components = {each for _, found in decoded for each in found}
    pairs = {pair for _, found in decoded for pair in pairs_of(found)}
    return (
        f"{len(drawn)} drawn, {len(decoded)} decoded in {sum(branches for branches, _ in decoded):,} branches, "
        f"{len(drawn) - len(decoded)} refused; {len(components)} components, {len(pairs)} pairs of them"
    )
