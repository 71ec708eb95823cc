"""Ever smaller versions of a composition that is too large to be enumerated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specframe.certify.compositions.small import LENGTH, Miniature
from specframe.kernel.build import Part
from specframe.kernel.errors import SpecframeError

FEWEST = 3
"""Smallest size of a reduced tree: the root, and two nodes that may be siblings or two levels."""


def ladder(own: Miniature) -> list[Miniature]:
    """The recipe's own composition first, then with smaller and smaller trees, at last with fewer tokens watched.

    Three tokens are watched as long as possible: the third is the first that depends on how long the first cycle was.
    """
    rungs = [own, replace(own.smaller(), small=True, length=LENGTH - 1)]
    while (simpler := _simpler(rungs[-1])) is not None:
        rungs.append(simpler)
    return [*rungs, replace(rungs[-1], length=LENGTH - 2)]


def reduced(own: Miniature, rung: Miniature) -> tuple[str, ...]:
    """Describes the reductions from the recipe; empty if only the vocabulary is smaller."""
    whole, small = own.promise, rung.promise
    pairs = ((name, getattr(whole, name), getattr(small, name)) for name in ("depth", "nodes"))
    return tuple(f"{name} {before} -> {now}" for name, before, now in pairs if before != now)


def _simpler(miniature: Miniature) -> Miniature | None:
    """The same with a tree of fewer nodes, as few fewer as one changed option can give; None where none can."""
    if miniature.tree is None:
        return None
    limit, found, most = _nodes(miniature, miniature.tree), None, FEWEST - 1
    for part in _variants(miniature.tree):
        if most < (nodes := _nodes(miniature, part)) < limit:
            found, most = part, nodes
    return None if found is None else replace(miniature, tree=found)


def _nodes(miniature: Miniature, tree: Part) -> int:
    """Returns the number of nodes of the policy's trees; 0 where its options do not fit together."""
    try:
        policy = replace(miniature, tree=tree).make_tree()
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
