"""Where the nodes of a tree go: a tidy drawing, levels from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spot:
    """A node's place: its level, and its row in units of a node's height."""

    level: int
    row: float


def lay_out(parents: Sequence[int]) -> list[Spot]:
    """The place of every node, given each node's parent; node 0 is the root, parents come first.

    A parent stands in the middle of its first and last child, siblings in order, neighbours of a level
    at least one row apart, and subtrees as close as that allows; the topmost node is in row 0. O(N * depth).

    Source: Reingold and Tilford (1981), the aesthetics and the contours; trees here are too small for threads.
    """
    count = len(parents)
    children: list[list[int]] = [[] for _ in range(count)]
    level = [0] * count
    for node in range(1, count):
        children[parents[node]].append(node)
        level[node] = level[parents[node]] + 1
    shift = [0.0] * count  # of a subtree against its parent
    tops: list[list[float]] = [[] for _ in range(count)]  # by level below the node, its subtree's first row
    bottoms: list[list[float]] = [[] for _ in range(count)]  # and its last
    for node in reversed(range(count)):
        top, bottom = list[float](), list[float]()
        places = []
        for child in children[node]:
            place = max((down + 1 - up for up, down in zip(tops[child], bottom, strict=False)), default=0.0)
            places.append(place)
            top += [row + place for row in tops[child][len(top) :]]
            bottom[: len(bottoms[child])] = [row + place for row in bottoms[child]]
        middle = (places[0] + places[-1]) / 2 if places else 0.0
        for child, place in zip(children[node], places, strict=True):
            shift[child] = place - middle
        tops[node] = [0.0, *(row - middle for row in top)]
        bottoms[node] = [0.0, *(row - middle for row in bottom)]
    rows = [-min(tops[0])] * count
    for node in range(1, count):
        rows[node] = rows[parents[node]] + shift[node]
    return [Spot(level[node], rows[node]) for node in range(count)]
