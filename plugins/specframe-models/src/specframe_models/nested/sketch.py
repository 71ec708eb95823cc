"""Unfinished chains: nodes on the host, including rejected proposals, and the nodes that each drafter has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from specframe.plugin import Frontier, Proposal, TokenTree

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Context, Expand, Promise


@dataclass(frozen=True)
class Proposed:
    """A path of nodes below the end of each row's chain."""

    nodes: list[list[int]]
    laws: Tensor | None = None
    """The distributions they were drawn from, [B, M, V], zeros beyond a row's nodes; None: they are the best tokens."""


class Sketch:
    """The nodes of a batch of chains and of all proposals for them, below root [B].

    Nodes are never removed and keep their numbers, as drafters require.
    """

    def __init__(self, root: Tensor) -> None:
        self._root = root
        self.tokens: list[list[int]] = [[token] for token in root.tolist()]
        """The tokens of each row's nodes."""
        self._parents = [[-1] for _ in self.tokens]
        self._depths = [[0] for _ in self.tokens]
        self._tree: TokenTree | None = None

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.tokens)

    def add(self, row: int, parent: int, token: int) -> int:
        """Adds a node of a row below another one, and returns it."""
        self.tokens[row].append(token)
        self._parents[row].append(parent)
        self._depths[row].append(self._depths[row][parent] + 1)
        self._tree = None
        return len(self.tokens[row]) - 1

    def path(self, row: int, node: int) -> list[int]:
        """Returns the nodes from the root to a node, both included."""
        found = [node]
        while found[-1]:
            found.append(self._parents[row][found[-1]])
        return found[::-1]

    def texts(self, ends: Sequence[int]) -> list[list[int]]:
        """Returns the tokens from below the root to a node, for each row."""
        return [[self.tokens[row][node] for node in self.path(row, end)[1:]] for row, end in enumerate(ends)]

    def tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Returns numbers of each row as a tensor [B, N]; shorter rows repeat their last one."""
        width = max(map(len, rows))
        return self._root.new_tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows])

    @property
    def tree(self) -> TokenTree:
        """Returns all nodes so far; shorter rows end in invalid ones."""
        if self._tree is None:
            width = max(map(len, self.tokens))
            columns = [
                [[*part[row], *[0] * (width - len(part[row]))] for row in range(len(self))]
                for part in (self.tokens, self._parents)
            ]
            tokens, parent = self._root.new_tensor(columns)
            counts = self._root.new_tensor([len(row) for row in self.tokens])
            self._tree = TokenTree(
                tokens=tokens,
                parent=parent,
                valid=torch.arange(width, device=tokens.device) < counts[:, None],
                draw=torch.zeros_like(tokens),
                levels=max(map(max, self._depths)),
            )
        return self._tree

    @cached_property
    def root_only(self) -> TokenTree:
        """Returns the roots alone, with which every drafter begins."""
        return TokenTree.root_only(self._root)


class Reader:
    """A drafter's forward pass, and the nodes that it has read.

    Args:
        expand: the forward pass.
        chains: whether it can read several nodes of a path at once.
    """

    def __init__(self, expand: Expand, *, chains: bool) -> None:
        self._expand = expand
        self._chains = chains
        self._known: list[set[int]] = []

    def read(self, sketch: Sketch, paths: Sequence[Sequence[int]]) -> tuple[Proposal, Tensor]:
        """Returns the proposals after the nodes of a path of each row, [B, W, 1, v], and the nodes [B, W].

        Unread nodes above them are read in the same pass. Shorter rows repeat their last node. A drafter that reads one
        node of a path at a time gets paths of one node.
        """
        if not self._known:
            self._known = [set() for _ in paths]
            if not self._chains or not any(map(any, paths)):
                found = self._expand(Frontier(sketch.root_only, sketch.tensor([[0]] * len(sketch))))
                self._known = [{0} for _ in paths]
                if not any(map(any, paths)):
                    return found, sketch.tensor(paths)
        unread = [self._unread(sketch, row, path) for row, path in enumerate(paths)]
        nodes = sketch.tensor(unread)  # [B, F]
        if not self._chains:
            for column in nodes.split(1, 1):
                found = self._expand(Frontier(sketch.tree, column))
            return found, sketch.tensor(paths)
        found = self._expand(Frontier(sketch.tree, nodes))
        places = sketch.tensor(
            [range(len(read) - len(path), len(read)) for read, path in zip(unread, paths, strict=True)]
        )
        rows = torch.arange(len(sketch), device=places.device)[:, None]
        return replace(found, logits=found.logits[rows, places], confidence=None), nodes.gather(1, places)

    def _unread(self, sketch: Sketch, row: int, path: Sequence[int]) -> list[int]:
        """Returns the nodes to read for a path: its unread ancestors and its own nodes."""
        known = self._known[row]
        ancestors = [node for node in sketch.path(row, path[0])[:-1] if node not in known]
        known.update(ancestors, path)
        return [*ancestors, *path]


class FunctionPolicy:
    """A tree policy defined by a function of a drafter's forward pass."""

    def __init__(self, promise: Promise, grow: Callable[[Expand], TokenTree]) -> None:
        self.promise = promise
        self._grow = grow

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the function's tree."""
        return self._grow(expand)
