"""The optimal tree of a given size, computed from measured acceptance rates of each choice.

An acceptance table has one row per level from 1 on: the probabilities that a node's first, second,
third ... child is accepted, given that the node was. The last row applies to all deeper levels.
A node's acceptance probability is the product of the entries along its path, so a tree's expected number
of accepted tokens is the sum of these products over its nodes.

If the target did not follow the drafter's first choice, the text is harder to predict, and acceptance below is lower
than below first choices. A second table, `off_path`, applies to nodes with any other choice among their ancestors (its
first row is unused). Without it the first table applies to all nodes, as in Sequoia.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod

import torch
from torch import Tensor

from specframe.components.trees.shape import Path, Shape
from specframe.kernel.errors import InputError

Table = Sequence[Sequence[float]]


def expected_tau(shape: Shape, acceptance: Table, off_path: Table = ()) -> float:
    """Expected tokens committed per cycle with a tree of this shape, the bonus included, under these tables."""

    def share(path: Path, level: int) -> float:
        return _entry(off_path if off_path and any(path[:level]) else acceptance, level, path[level])

    return 1 + sum(prod(share(path, level) for level in range(len(path))) for path in shape.paths)


def optimal_shape(acceptance: Table, nodes: int, depth: int, off_path: Table = ()) -> Shape:
    """The shape of at most `nodes` nodes below the root, on at most `depth` levels, with the largest expected tau.

    No rank is skipped, as sampled draws require. Sequoia's dynamic program (Chen et al. 2024) with one table row per
    level; nodes that would never be accepted are not added. Time is O(depth * ranks * nodes^2).
    Raises InputError for a table without a positive entry, entries outside [0, 1], or limits below 1.
    """
    _check(acceptance, nodes, off_path)
    if depth < 1:
        raise InputError(f"a tree needs a depth of at least 1, got {depth}")
    nothing = torch.zeros(nodes + 1, dtype=torch.float64)
    on_path = off = nothing  # [n + 1] most expected tokens below a node, by nodes spent there
    plans: list[tuple[list[list[int]], list[list[int]]]] = []  # by level: how many nodes go below and into each child
    for level in reversed(range(depth)):
        on, first = _best_children(_row(acceptance, level), on_path, off)
        off, other = _best_children(_row(off_path or acceptance, level), off, off)
        on_path = on
        plans.insert(0, (first, other))
    paths: list[Path] = []
    pending: list[tuple[Path, int]] = [((), nodes)]
    while pending:
        path, budget = pending.pop()
        if len(path) < depth:
            for rank, size in enumerate(plans[len(path)][any(path)][budget]):
                paths.append((*path, rank))
                pending.append(((*path, rank), size - 1))
    return Shape(paths)


def optimal_product_shape(acceptance: Table, nodes: int) -> Shape:
    """The shape of at most `nodes` nodes below the root with the largest expected tau, which may skip ranks.

    Has at most one level per row of the table. For `top` nodes, which may skip ranks: adds the nodes with the
    largest products in turn. This greedy search was used for Medusa's trees (Cai et al. 2024), and it is
    optimal because no node is worth more than its parent.
    Raises InputError for a table without a positive entry, or entries outside [0, 1].
    """
    _check(acceptance, nodes)
    ranked = [sorted(range(len(row)), key=row.__getitem__, reverse=True) for row in acceptance]
    order = count()  # breaks ties of equal products: the first found wins
    heap: list[tuple[float, int, Path, float]] = []  # paths here are places in `ranked`; last, the parent's value

    def offer(parent: Path, value: float, place: int) -> None:
        level = len(parent)
        if level < len(ranked) and place < len(ranked[level]):
            share = acceptance[level][ranked[level][place]]
            if value * share > 0:
                heapq.heappush(heap, (-value * share, next(order), (*parent, place), value))

    offer((), 1.0, 0)
    paths: list[Path] = []
    while heap and len(paths) < nodes:
        value, _, path, parent_value = heapq.heappop(heap)
        paths.append(tuple(ranked[level][place] for level, place in enumerate(path)))
        offer(path, -value, 0)
        offer(path[:-1], parent_value, path[-1] + 1)
    return Shape(paths)


@dataclass(frozen=True)
class Choice:
    """A shape with its expected tokens and its cost."""

    shape: Shape
    tau: float
    seconds: float
    """Seconds per cycle, including the drafter's forward passes for all levels."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tau / self.seconds


def fastest_shape(
    acceptance: Table,
    *,
    draft_seconds: float,
    cycle_seconds: Mapping[int, float],
    depth: int,
    block: int = 1,
    off_path: Table = (),
) -> Choice:
    """The shape with the most tokens per second, over all sizes of measured cost and all depths up to `depth`.

    `cycle_seconds` maps the number of nodes, the root included, to the time of a cycle without the drafter's forward
    passes; `draft_seconds` is the time of one, which proposes `block` levels. Source: Sequoia's hardware-aware choice
    (Chen et al. 2024).
    """
    choices = []
    for size, seconds in cycle_seconds.items():
        for levels in range(1, depth + 1) if size > 1 else ():
            shape = optimal_shape(acceptance, size - 1, levels, off_path)
            cost = -(-shape.depth // block) * draft_seconds + seconds
            choices.append(Choice(shape, expected_tau(shape, acceptance, off_path), cost))
    if not choices:
        raise InputError("there is no tree to choose: give the seconds of a cycle for trees of two nodes or more")
    return max(choices, key=lambda choice: choice.rate)


def _best_children(row: Sequence[float], first: Tensor, others: Tensor) -> tuple[Tensor, list[list[int]]]:
    """Returns the best gain of a node's children for every budget, [n + 1], and each child's nodes per budget.

    `first` [n + 1] is the gain below the first child by nodes spent there, `others` [n + 1] below any other child.
    """
    size = len(first)
    budget = torch.arange(size)
    spent = budget[:, None] - budget  # [n + 1, n + 1] nodes left for the earlier ones if the child takes `column`
    best = torch.zeros(size, dtype=torch.float64)  # [n + 1] with the first `rank` children, each of a node at least
    earliest, totals, choices = best, [best], []
    for rank, share in enumerate(row[: size - 1]):
        child = torch.full((size,), -torch.inf, dtype=torch.float64)
        child[1:] = share * (1 + (others if rank else first)[:-1])
        gain = earliest[spent.clamp(min=0)].masked_fill(spent < 0, -torch.inf) + child
        earliest, taken = gain.max(1)
        totals.append(earliest)
        choices.append(taken.tolist())
    best, children = torch.stack(totals).max(0)
    plan = []
    for total, number in enumerate(children.tolist()):
        sizes: list[int] = []
        for taken in reversed(choices[:number]):
            sizes.insert(0, taken[total])
            total -= taken[total]
        plan.append(sizes)
    return best, plan


def _row(acceptance: Table, level: int) -> Sequence[float]:
    return acceptance[min(level, len(acceptance) - 1)]


def _entry(acceptance: Table, level: int, rank: int) -> float:
    row = _row(acceptance, level)
    return row[rank] if rank < len(row) else 0.0


def _check(acceptance: Table, nodes: int, off_path: Table = ()) -> None:
    if nodes < 1:
        raise InputError(f"a tree needs at least one node below its root, got {nodes}")
    if not all(0 <= share <= 1 for row in [*acceptance, *off_path] for share in row):
        raise InputError("an acceptance table holds probabilities: every entry must lie between 0 and 1")
    if not acceptance or not any(share > 0 for share in acceptance[0]):
        raise InputError("an acceptance table needs a choice that is sometimes accepted in its first row")
