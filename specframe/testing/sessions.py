"""Decoding by hand: a session whose pairs a test makes up, and a tree that it grows node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specframe.kernel.types import Committed, Frontier, Prompts, Teacher, TokenTree

NONSENSE = 7.0
"""The features of padding."""


class GivenSession:
    """A session whose texts are given, for tests that commit to a drafter themselves.

    Pair i of text b is the target's feature `features[b, i]` and the token after it, `tokens[b, i]`. No text is decoded
    at first: `admit` makes rows of the next ones, and `advance` commits more pairs of every row, at a pace of its own.

    Args:
        features: [B, L, D], or several taps' by name.
        tokens: [B, L] int64.
    """

    def __init__(self, features: Tensor | Mapping[str, Tensor], tokens: Tensor) -> None:
        self._features = {"last": features} if isinstance(features, Tensor) else dict(features)
        self._tokens = tokens
        self._texts: list[int] = []  # the text of every row
        self._counts: list[int] = []
        self._admitted = 0

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
        """Made-up pairs: normal features of `size` numbers, tokens below `vocab`; text b is the same among any."""
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
        return cls({tap: values[:, :-1] for tap, values in teacher.features.items()}, teacher.tokens[:, 1:])

    @property
    def features(self) -> list[Tensor]:
        """The features of the tap `last` committed so far, of every row: [n, D]."""
        return self.tap("last")

    def tap(self, name: str) -> list[Tensor]:
        """The features of a tap committed so far, of every row: [n, D]."""
        return [self._features[name][text, :count] for text, count in zip(self._texts, self._counts, strict=True)]

    @property
    def tokens(self) -> list[Tensor]:
        """The tokens that follow them, of every row: [n]."""
        return [self._tokens[text, :count] for text, count in zip(self._texts, self._counts, strict=True)]

    @property
    def root(self) -> Tensor:
        """The last committed token of every row, [B]."""
        return torch.stack([tokens[-1] for tokens in self.tokens])

    def admit(self, counts: Sequence[int], *, padding: int = 0) -> Committed:
        """Admits the next texts as rows and commits `counts` pairs of each, of these alone, with a prompt."""
        first = len(self._counts)
        self._texts += range(self._admitted, self._admitted + len(counts))
        self._counts += [0] * len(counts)
        self._admitted += len(counts)
        return self._commit(range(first, len(self._counts)), counts, padding, prompt=True)

    def advance(self, counts: Sequence[int], *, padding: int = 0) -> Committed:
        """The next `counts[b]` pairs of every row b, as a target commits them.

        The columns beyond a row's pairs, `padding` more than necessary, hold nonsense. Raises ValueError when a text
        has no more pairs.
        """
        return self._commit(range(len(self._counts)), counts, padding, prompt=False)

    def _commit(self, rows: range, counts: Sequence[int], padding: int, *, prompt: bool) -> Committed:
        width = max(counts) + padding
        features = {
            tap: text.new_full((len(rows), width, text.shape[2]), NONSENSE) for tap, text in self._features.items()
        }
        tokens = self._tokens.new_zeros(len(rows), width)
        for place, (row, more) in enumerate(zip(rows, counts, strict=True)):
            text, start = self._texts[row], self._counts[row]
            end = start + more
            if end > self._tokens.shape[1]:
                raise ValueError(f"row {row} has {self._tokens.shape[1]} pairs, not {end}; give it a longer text")
            for tap, made in features.items():
                made[place, :more] = self._features[tap][text, start:end]
            tokens[place, :more] = self._tokens[text, start:end]
            self._counts[row] = end
        count = torch.tensor(counts)
        root = self.root[rows.start :]
        return Committed(tokens, count, features, root, Prompts(torch.zeros_like(tokens), count) if prompt else None)

    def keep(self, rows: Sequence[int]) -> Tensor:
        """Keeps these rows, in this order; returns them as a drafter gets them, int64 [R]."""
        self._texts = [self._texts[row] for row in rows]
        self._counts = [self._counts[row] for row in rows]
        return torch.tensor(list(rows))


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
        """The index of a new node the given number of levels below, with a dead-end sibling on every level."""
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
