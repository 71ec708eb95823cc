"""Decoding by hand: a session whose pairs a test makes up, and a tree that it grows node by node."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.kernel.types import Committed, Frontier, Prompts, Teacher, TokenTree

NONSENSE = 7.0
"""The features of padding."""


class GivenSession:
    """A session whose texts are given, for tests that tell a drafter the news themselves.

    Pair i of row b is the target's feature `features[b, i]` and the token after it, `tokens[b, i]`. Each `news`
    commits so many more of a row's pairs, at a pace of its own.

    Args:
        features: [B, L, D], the tap `last`.
        tokens: [B, L] int64.
    """

    def __init__(self, features: Tensor, tokens: Tensor) -> None:
        self._features, self._tokens = features, tokens
        self._counts = [0] * len(tokens)

    @classmethod
    def random(
        cls,
        rows: int,
        vocab: int,
        size: int,
        *,
        length: int = 100,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> GivenSession:
        """Made-up pairs: normal features of `size` numbers, tokens below `vocab`; row b is the same among any rows."""
        texts = []
        for row in range(rows):
            chance = torch.Generator().manual_seed(1000 * seed + row)
            features = torch.randn(length, size, generator=chance, dtype=torch.float64)
            texts.append((features, torch.randint(vocab, (length,), generator=chance)))
        made, tokens = (torch.stack(part) for part in zip(*texts, strict=True))
        return cls(made.to(dtype), tokens)

    @classmethod
    def of(cls, teacher: Teacher) -> GivenSession:
        """The teacher's texts with the target's own features."""
        return cls(teacher.features["last"][:, :-1], teacher.tokens[:, 1:])

    @property
    def features(self) -> list[Tensor]:
        """The features committed so far, of every row: [n, D]."""
        return [row[:count] for row, count in zip(self._features, self._counts, strict=True)]

    @property
    def tokens(self) -> list[Tensor]:
        """The tokens that follow them, of every row: [n]."""
        return [row[:count] for row, count in zip(self._tokens, self._counts, strict=True)]

    @property
    def root(self) -> Tensor:
        """The last committed token of every row, [B]."""
        return torch.stack([tokens[-1] for tokens in self.tokens])

    def news(self, counts: Sequence[int], *, first: bool = False, padding: int = 0) -> Committed:
        """The next `counts[b]` pairs of every row b, as a target tells them; the `first` come with a prompt.

        What lies beyond a row's pairs, `padding` columns more than there must be, holds nonsense. Raises
        ValueError when a text has no more pairs.
        """
        width = max(counts) + padding
        features = self._features.new_full((len(counts), width, self._features.shape[2]), NONSENSE)
        tokens = self._tokens.new_zeros(len(counts), width)
        for row, (start, count) in enumerate(zip(self._counts, counts, strict=True)):
            end = start + count
            if end > self._tokens.shape[1]:
                raise ValueError(f"row {row} has {self._tokens.shape[1]} pairs, not {end}; give it a longer text")
            features[row, :count] = self._features[row, start:end]
            tokens[row, :count] = self._tokens[row, start:end]
            self._counts[row] = end
        told = torch.tensor(counts)
        prompt = Prompts(torch.zeros_like(tokens), told) if first else None
        return Committed(tokens, told, {"last": features}, self.root, prompt)

    def keep(self, rows: Sequence[int]) -> Tensor:
        """Keeps these rows, in this order; returns them as a drafter is told, int64 [R]."""
        chosen = list(rows)
        self._features, self._tokens = self._features[chosen], self._tokens[chosen]
        self._counts = [self._counts[row] for row in chosen]
        return torch.tensor(chosen)


class GrowingTree:
    """A tree grown by hand, node by node, to ask a drafter for any frontier: one shape, other tokens in every row.

    Args:
        root: [B] int64.
        vocab: how many tokens there are to choose from.
        seed: of the tokens.
    """

    def __init__(self, root: Tensor, vocab: int, seed: int = 0) -> None:
        self._chance = torch.Generator().manual_seed(seed)
        self._vocab = vocab
        self.tokens = root[:, None]
        """The nodes' tokens, [B, N]."""
        self.parents = [-1]
        """The nodes' parents, the same in every row."""

    def add(self, parent: int, tokens: Tensor | None = None) -> int:
        """The index of a new node below `parent`, with these tokens [B] or random ones."""
        if tokens is None:
            tokens = torch.randint(self._vocab, (len(self.tokens),), generator=self._chance)
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)
        self.parents.append(parent)
        return len(self.parents) - 1

    def descend(self, node: int, levels: int) -> int:
        """The index of a new node so many levels below, with a sibling that leads nowhere on every level."""
        for _ in range(levels):
            self.add(node)
            node = self.add(node)
        return node

    def path(self, node: int) -> list[int]:
        """The nodes from level 1 down to `node`; none for the root."""
        return [] if node == 0 else [*self.path(self.parents[node]), node]

    @property
    def tree(self) -> TokenTree:
        """The tree so far."""
        return TokenTree(
            tokens=self.tokens,
            parent=torch.tensor(self.parents).expand(len(self.tokens), -1),
            valid=torch.ones_like(self.tokens, dtype=torch.bool),
            draw=torch.zeros_like(self.tokens),
            levels=max(len(self.path(node)) for node in range(len(self.parents))),
        )

    def frontier(self, nodes: Sequence[int]) -> Frontier:
        """The tree so far, and these nodes to expand in every row."""
        return Frontier(self.tree, torch.tensor(nodes).expand(len(self.tokens), -1))
