"""Ever smaller versions of a composition that is too large to be enumerated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specframe.certify.compositions.small import LENGTH, SmallComposition
from specframe.kernel.errors import SpecframeError
from specframe.recipes.build import Part

FEWEST = 3
"""Smallest size of a reduced tree: the root, and two nodes that may be siblings or two levels."""


def smaller_versions(own: SmallComposition) -> list[SmallComposition]:
    """The recipe's own composition first, then with smaller and smaller trees, at last with fewer tokens watched.

    Three tokens are watched as long as possible: the third is the first that depends on how long the first cycle was.
    """
    found = [own, replace(own, small=True, length=LENGTH - 1)]
    while (simpler := _simpler(found[-1])) is not None:
        found.append(simpler)
    return [*found, replace(found[-1], length=LENGTH - 2)]


def reduced(own: SmallComposition, version: SmallComposition) -> tuple[str, ...]:
    """Describes the reductions from the recipe; empty if only the vocabulary is smaller."""
    whole, small = own.promise, version.promise
    pairs = ((name, getattr(whole, name), getattr(small, name)) for name in ("depth", "nodes"))
    return tuple(f"{name} {before} -> {now}" for name, before, now in pairs if before != now)


def _simpler(small: SmallComposition) -> SmallComposition | None:
    """The composition with the next smaller tree that one changed option can give; None where none can."""
    if small.tree is None:
        return None
    limit, found, most = _nodes(small, small.tree), None, FEWEST - 1
    for part in _variants(small.tree):
        if most < (nodes := _nodes(small, part)) < limit:
            found, most = part, nodes
    return None if found is None else replace(small, tree=found)


def _nodes(small: SmallComposition, tree: Part) -> int:
    """Returns the number of nodes of the policy's trees; 0 where its options do not fit together."""
    try:
        policy = replace(small, tree=tree).make_tree()
    except SpecframeError:
        return 0
    return (policy.promise.nodes or 0) if policy is not None else 0


def _variants(part: Part) -> Iterator[Part]:
    """The component with one of its numbers decreased, or fewer entries in one of its lists."""
    for name, value in part.options.items():
        for less in _decreased(value):
            yield replace(part, options=part.options | {name: less})


def _decreased(value: Any) -> Iterator[Any]:
    if isinstance(value, Part):
        yield from _variants(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from {less for less in (value - 1, 2, 1) if 0 < less < value}
    elif isinstance(value, list | tuple):
        kind = type(value)
        for place in reversed(range(len(value))):
            for less in _decreased(value[place]):
                yield kind([*value[:place], less, *value[place + 1 :]])
        yield from (kind(value[:count]) for count in {len(value) - 1, 2, 1} if 0 < count < len(value))
