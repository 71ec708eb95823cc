"""Rows of a session made up: features and tokens as a target tells them, and trees grown by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe import Committed, Frontier, Prompts, TokenTree
from specframe.components.targets.table import TableTarget
from specframe_chimera.drafter import Chimera

VOCAB, SIZE = 11, 8


def target() -> TableTarget:
    """A neural target in float64 with an embedding, an LM head and a Llama's layer shape."""
    return TableTarget(vocab=VOCAB, hidden=SIZE, seed=5)


def bound(seed: int = 1, **options: object) -> Chimera:
    """A drafter with random weights large enough for every part to matter."""
    drafter = Chimera(**options)
    drafter.bind(target())
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.add_(torch.randn(weight.shape, generator=chance, dtype=torch.float64) / 3)
    return drafter


class Session:
    """The texts of a batch: features [n, D] and the token that follows each, [n], row by row."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.chance = torch.Generator().manual_seed(seed)
        self.features = [torch.zeros(0, SIZE, dtype=torch.float64) for _ in range(rows)]
        self.tokens = [torch.zeros(0, dtype=torch.int64) for _ in range(rows)]

    def news(self, counts: Sequence[int], first: bool = False, padding: int = 0) -> Committed:
        """So many more pairs of every row, padded with nonsense."""
        width = max(counts) + padding
        features = torch.full((len(counts), width, SIZE), 7.0, dtype=torch.float64)
        tokens = torch.zeros(len(counts), width, dtype=torch.int64)
        for row, count in enumerate(counts):
            features[row, :count] = torch.randn(count, SIZE, generator=self.chance, dtype=torch.float64)
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
