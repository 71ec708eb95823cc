"""Rows of a session made up: features and tokens as a target tells them, and trees grown by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe import Committed, Frontier, Prompts, Teacher, TokenTree
from specframe.components.targets.table import TableTarget
from specframe_parallelspec.drafter import ParallelSpec

VOCAB, SIZE = 11, 8
SHAPES = [{"masks": 1}, {"masks": 3}, {"masks": 2, "features": False}]
"""Options that differ in what there is to compute."""


def bound(dtype: torch.dtype = torch.float64, **options: object) -> ParallelSpec:
    """A drafter with random weights large enough for every part to matter."""
    target = TableTarget(vocab=VOCAB, hidden=SIZE, seed=5)
    target.dtype = dtype
    target._embedding, target._head = target._embedding.to(dtype), target._head.to(dtype)
    drafter = ParallelSpec(**options)
    drafter.bind(target)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight + torch.randn(weight.shape, generator=chance, dtype=torch.float64) / 2)
    return drafter


def texts(batch: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Made-up features [B, n, D] and the tokens that follow them, [B, n]."""
    chance = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, length, SIZE, generator=chance, dtype=torch.float64)
    return features, torch.randint(VOCAB, (batch, length), generator=chance)


def teach(target: TableTarget, batch: int, length: int) -> Teacher:
    """Random texts and what the target says about them; a prompt's and a few other places do not count."""
    chance = torch.Generator().manual_seed(3)
    tokens = torch.randint(target.vocab_size, (batch, length), generator=chance)
    mask = torch.rand(batch, length, generator=chance) < 0.8
    mask[:, :2] = False
    return target.teach(tokens, mask)


class Session:
    """The texts of a batch: features [n, D] and the token that follows each, [n], row by row."""

    def __init__(self, rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype
        self.chance = torch.Generator().manual_seed(seed)
        self.features = [torch.zeros(0, SIZE, dtype=dtype) for _ in range(rows)]
        self.tokens = [torch.zeros(0, dtype=torch.int64) for _ in range(rows)]

    def news(self, counts: Sequence[int], first: bool = False, padding: int = 0) -> Committed:
        """So many more pairs of every row, padded with nonsense features."""
        width = max(counts) + padding
        features = torch.full((len(counts), width, SIZE), 7.0, dtype=self.dtype)
        tokens = torch.zeros(len(counts), width, dtype=torch.int64)
        for row, count in enumerate(counts):
            exact = torch.randn(count, SIZE, generator=self.chance, dtype=torch.float64)
            features[row, :count] = exact.to(self.dtype)
            tokens[row, :count] = torch.randint(VOCAB, (count,), generator=self.chance)
            self.features[row] = torch.cat([self.features[row], features[row, :count]])
            self.tokens[row] = torch.cat([self.tokens[row], tokens[row, :count]])
        count = torch.tensor(counts)
        prompt = Prompts(torch.zeros_like(tokens), count) if first else None
        return Committed(tokens, count, {"last": features}, self.root, prompt)

    @property
    def root(self) -> Tensor:
        """The last token of every row, [B]."""
        return torch.stack([tokens[-1] for tokens in self.tokens])

    def keep(self, rows: Sequence[int]) -> Tensor:
        """Drops the other rows; gives what the drafter is told."""
        self.features = [self.features[row] for row in rows]
        self.tokens = [self.tokens[row] for row in rows]
        return torch.tensor(rows)


class Growing:
    """A tree grown by hand, node by node, the same shape and other tokens in every row."""

    def __init__(self, root: Tensor, seed: int = 0) -> None:
        self.chance = torch.Generator().manual_seed(seed)
        self.tokens = root[:, None]
        self.parents = [-1]

    def add(self, parent: int) -> int:
        """The index of a new node below `parent`."""
        fresh = torch.randint(VOCAB, (len(self.tokens), 1), generator=self.chance)
        self.tokens = torch.cat([self.tokens, fresh], 1)
        self.parents.append(parent)
        return len(self.parents) - 1

    def descend(self, node: int, levels: int) -> int:
        """A node so many levels below, with a sibling that leads nowhere on every level."""
        for _ in range(levels):
            self.add(node)
            node = self.add(node)
        return node

    def path(self, node: int) -> list[int]:
        """The nodes from level 1 down to `node`."""
        return [] if node == 0 else [*self.path(self.parents[node]), node]

    def frontier(self, nodes: Sequence[int]) -> Frontier:
        """The tree so far, and the nodes to expand in every row."""
        batch = len(self.tokens)
        tree = TokenTree(
            tokens=self.tokens,
            parent=torch.tensor(self.parents).expand(batch, -1),
            valid=torch.ones_like(self.tokens, dtype=torch.bool),
            draw=torch.zeros_like(self.tokens),
            levels=max(len(self.path(node)) for node in range(len(self.parents))),
        )
        return Frontier(tree, torch.tensor(nodes).expand(batch, -1))
