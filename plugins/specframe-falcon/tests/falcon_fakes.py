"""A neural target of a few numbers, and decoding by hand: what these tests drive the drafter with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig

from specframe import Committed, Frontier, Prompts, Scores, Teacher, TokenTree, Verdict

VOCAB = 11
SIZE = 8


class FakeTarget:
    """An embedding, an LM head and a layer shape to share; it decodes nothing."""

    vocab_size = VOCAB
    context = 4096
    rewinds = True
    device = torch.device("cpu")

    def __init__(self, dtype: torch.dtype = torch.float64, size: int = SIZE) -> None:
        chance = torch.Generator().manual_seed(5)
        self.dtype = dtype
        self.embedding = torch.randn(VOCAB, size, generator=chance, dtype=torch.float64).to(dtype)
        self.output = torch.randn(VOCAB, size, generator=chance, dtype=torch.float64).to(dtype)
        self.taps: frozenset[str] = frozenset()
        self.config = LlamaConfig(
            hidden_size=size,
            intermediate_size=12,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=VOCAB,
            rms_norm_eps=1e-5,
        )

    def request(self, taps: frozenset[str]) -> None:
        self.taps |= taps

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens]

    def head(self, features: Tensor) -> Tensor:
        return features @ self.output.T

    def prefill(self, prompts: Prompts, room: int) -> tuple[TokenTree, Scores]:
        raise NotImplementedError

    def score(self, tree: TokenTree) -> Scores:
        raise NotImplementedError

    def commit(self, tree: TokenTree, verdict: Verdict) -> Committed:
        raise NotImplementedError

    def teach(self, tokens: Tensor, mask: Tensor) -> Teacher:
        raise NotImplementedError

    def keep(self, rows: Tensor) -> None:
        raise NotImplementedError


class Text:
    """A row's committed pairs: features [n, D] and the token that follows each, [n]."""

    def __init__(self, chance: torch.Generator, dtype: torch.dtype = torch.float64) -> None:
        self.chance = chance
        self.features = torch.zeros(0, SIZE, dtype=dtype)
        self.tokens = torch.zeros(0, dtype=torch.int64)

    def more(self, count: int) -> tuple[Tensor, Tensor]:
        """The next `count` pairs, which the text now holds."""
        exact = torch.randn(count, SIZE, generator=self.chance, dtype=torch.float64)
        features = exact.to(self.features.dtype)
        tokens = torch.randint(VOCAB, (count,), generator=self.chance)
        self.features = torch.cat([self.features, features])
        self.tokens = torch.cat([self.tokens, tokens])
        return features, tokens


def texts(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Text]:
    """Empty texts, each with a stream of its own."""
    return [Text(torch.Generator().manual_seed(100 * seed + row), dtype) for row in range(count)]


def news(rows: Sequence[Text], counts: Sequence[int], first: bool = False, padding: int = 0) -> Committed:
    """The next pairs of every text as a target tells them, padded with nonsense features."""
    width = max(counts) + padding
    features = torch.full((len(rows), width, SIZE), 7.0, dtype=rows[0].features.dtype)
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    for row, (text, count) in enumerate(zip(rows, counts, strict=True)):
        features[row, :count], tokens[row, :count] = text.more(count)
    count = torch.tensor(counts)
    root = tokens.gather(1, count[:, None] - 1)[:, 0]
    prompt = Prompts(torch.zeros_like(tokens), count) if first else None
    return Committed(tokens, count, {"last": features}, root, prompt)


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
        parent = torch.tensor(self.parents).expand(batch, -1)
        tree = TokenTree(
            tokens=self.tokens,
            parent=parent,
            valid=torch.ones_like(self.tokens, dtype=torch.bool),
            draw=torch.zeros_like(self.tokens),
            levels=max(len(self.path(node)) for node in range(len(self.parents))),
        )
        return Frontier(tree, torch.tensor(nodes).expand(batch, -1))
