"""A tree whose shape is known before it is drafted, compiled into index tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from operator import mul

import torch
from torch import Tensor

from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw

Path = tuple[int, ...]
MOST_NODES = 8192
"""Trees with this many nodes or more are refused: the attention mask would have 67 million entries per row."""


@dataclass(frozen=True)
class Level:
    """The children of one level of nodes, without their tokens, as index tensors."""

    parents: Tensor  # [M] nodes that have children, in index order
    grandparent: Tensor  # [M] index of each parent's own parent among the parents one level up
    slot: Tensor  # [C] index of each child's parent in `parents`
    rank: Tensor  # [C] rank of each child among its parent's choices
    choices: int  # one more than the largest rank
    groups: tuple[tuple[int, Tensor], ...]  # (number of children, indices of the parents with that number)
    order: Tensor  # [C] index of each child in the concatenation of the groups' children

    def to(self, device: torch.device) -> Level:
        """The level with its indices on a device."""
        return Level(
            self.parents.to(device),
            self.grandparent.to(device),
            self.slot.to(device),
            self.rank.to(device),
            self.choices,
            tuple((count, places.to(device)) for count, places in self.groups),
            self.order.to(device),
        )


class Shape:
    """The shape given by the paths of all nodes below the root, in any order.

    A path lists the rank of the choice at each level: (0, 2) is the third choice below the first.
    Nodes are numbered level by level, siblings by rank.
    """

    def __init__(self, paths: Iterable[Sequence[int]]) -> None:
        given = [tuple(path) for path in paths]
        _refuse_broken(given)
        self.paths: list[Path] = sorted(given, key=lambda path: (len(path), path))
        self.nodes = len(self.paths) + 1
        self.depth = len(self.paths[-1])
        index = {path: node for node, path in enumerate([(), *self.paths])}
        rows: list[Level] = []
        places: dict[Path, int] = {}
        for depth in range(1, self.depth + 1):
            children = [path for path in self.paths if len(path) == depth]
            count = Counter(path[:-1] for path in children)  # in index order, as the children are
            grandparents = [places[parent[:-1]] for parent in count if parent]
            places = {parent: place for place, parent in enumerate(count)}
            groups = [(size, [places[p] for p in count if count[p] == size]) for size in sorted(set(count.values()))]
            laid = [(place, rank) for size, group in groups for place in group for rank in range(size)]
            seat = {pair: i for i, pair in enumerate(laid)}
            nth: Counter[Path] = Counter()
            order = []
            for path in children:
                order.append(seat[places[path[:-1]], nth[path[:-1]]])
                nth[path[:-1]] += 1
            rows.append(
                Level(
                    parents=torch.tensor([index[parent] for parent in count]),
                    grandparent=torch.tensor(grandparents or [0]),
                    slot=torch.tensor([places[path[:-1]] for path in children]),
                    rank=torch.tensor([path[-1] for path in children]),
                    choices=max(path[-1] for path in children) + 1,
                    groups=tuple((size, torch.tensor(group)) for size, group in groups),
                    order=torch.tensor(order),
                )
            )
        self._levels: dict[torch.device, list[Level]] = {torch.device("cpu"): rows}

    @classmethod
    def of_widths(cls, widths: Sequence[int]) -> Shape:
        """Returns the shape in which every node of level i has `widths[i]` children."""
        if not widths or min(widths) < 1:
            raise InputError(f"a tree needs a level or more, and widths of at least 1, got {list(widths)}")
        if sum(accumulate(widths, mul)) >= MOST_NODES:
            raise InputError(f"a tree of these widths has {MOST_NODES:,} nodes or more, which no target scores at once")
        depths = range(1, len(widths) + 1)
        return cls(path for depth in depths for path in product(*(range(width) for width in widths[:depth])))

    @property
    def chain(self) -> bool:
        """True for a single path of first choices."""
        return self.nodes == self.depth + 1 and not any(map(any, self.paths))

    @property
    def gap(self) -> Path | None:
        """A path whose earlier sibling is missing, if there is one."""
        known = set(self.paths)
        return next((p for p in self.paths if p[-1] and (*p[:-1], p[-1] - 1) not in known), None)

    def promise(self, *draws: Draw) -> Promise:
        """Returns the promise of a policy whose trees all have this shape, with nodes of these draws."""
        return Promise(frozenset(draws), self.nodes, self.depth, fixed_sibling_count=True)

    def smaller(self) -> Shape:
        """The shape's first two levels, of each node's first two choices."""
        return Shape(path for path in self.paths if len(path) <= 2 and max(path) < 2)

    def levels(self, device: torch.device) -> list[Level]:
        """The levels from the root's children down, with their indices on a device."""
        if device not in self._levels:
            self._levels[device] = [level.to(device) for level in self._levels[torch.device("cpu")]]
        return self._levels[device]


def dotted(path: Sequence[int]) -> str:
    """A path in the format of recipes: (0, 2) is "0.2"."""
    return ".".join(map(str, path))


def parse(text: str) -> Path:
    """The path that dotted ranks like "0.2" stand for; raises InputError for anything else."""
    try:
        path = tuple(int(rank) for rank in str(text).split("."))
    except ValueError:
        path = (-1,)
    if min(path) < 0:
        raise InputError(f"{text!r} is no path: write ranks from 0, joined by dots, like '0' or '0.2'")
    return path


def _refuse_broken(paths: list[Path]) -> None:
    known = {(), *paths}
    if not paths:
        raise InputError("a tree needs at least one path below its root; for none at all use drafter `none`")
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise InputError(f"path {dotted(twice[0])!r} is given more than once")
    if orphans := [path for path in paths if path[:-1] not in known]:
        child, parent = dotted(orphans[0]), dotted(orphans[0][:-1])
        raise InputError(f"path {child!r} has no parent: add {parent!r} or leave it out")
