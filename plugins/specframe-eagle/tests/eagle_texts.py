"""Small random targets of several kinds, their texts, and decoding by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specframe import Committed, Frontier, Prompts, Teacher, TokenTree
from specframe.components.targets.hf import HFTarget
from specframe_eagle.drafter import Eagle

VOCAB = 11
KINDS = ["llama", "mistral", "qwen2", "qwen3"]


@lru_cache(maxsize=8)
def target(kind: str = "llama", dtype: torch.dtype = torch.float64, size: int = 8, vocab: int = VOCAB) -> HFTarget:
    """A random model of two layers, two query heads on one of keys, far from uniform laws."""
    config = AutoConfig.for_model(
        kind,
        vocab_size=vocab,
        hidden_size=size,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=size // 2,
        max_position_embeddings=128,
        initializer_range=0.8,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = HFTarget.from_model(AutoModelForCausalLM.from_config(config).to(dtype).eval())
    made.request(frozenset({"last"}))
    return made


def bound(kind: str = "llama", dtype: torch.dtype = torch.float64, **options: object) -> Eagle:
    """A drafter with random weights large enough for every part to matter."""
    drafter = Eagle(**options)
    drafter.bind(target(kind, dtype))
    chance = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight + torch.randn(weight.shape, generator=chance, dtype=torch.float64) / 3)
    return drafter


def teach(model: HFTarget, batch: int, length: int, seed: int = 0) -> Teacher:
    """Random texts and what the target says about them; a prompt's and a few other places do not count."""
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.vocab_size, (batch, length), generator=chance)
    mask = torch.rand(batch, length, generator=chance) < 0.8
    mask[:, :2] = False
    return model.teach(tokens, mask)


class Rows:
    """Texts that are committed bit by bit, each at its own pace."""

    def __init__(self, teacher: Teacher, rows: Sequence[int] | None = None) -> None:
        chosen = list(range(len(teacher.tokens)) if rows is None else rows)
        self.tokens = teacher.tokens[chosen]
        self.features = teacher.features["last"][chosen]
        self.known = [0] * len(chosen)

    def more(self, counts: Sequence[int], first: bool = False, padding: int = 0) -> Committed:
        """The next pairs (f_i, t_(i+1)) of every row as a target tells them, padded with nonsense features."""
        width = max(counts) + padding
        features = torch.full((len(counts), width, self.features.shape[2]), 7.0, dtype=self.features.dtype)
        tokens = torch.zeros(len(counts), width, dtype=torch.int64)
        for row, (start, count) in enumerate(zip(self.known, counts, strict=True)):
            features[row, :count] = self.features[row, start : start + count]
            tokens[row, :count] = self.tokens[row, start + 1 : start + count + 1]
        self.known = [start + count for start, count in zip(self.known, counts, strict=True)]
        count = torch.tensor(counts)
        prompt = Prompts(torch.zeros_like(tokens), count) if first else None
        return Committed(tokens, count, {"last": features}, self.roots, prompt)

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps these rows."""
        self.tokens, self.features = self.tokens[rows], self.features[rows]
        self.known = [self.known[row] for row in rows]

    @property
    def roots(self) -> Tensor:
        """The last committed token of every row, [B]."""
        return torch.stack([row[known] for row, known in zip(self.tokens, self.known, strict=True)])

    def pairs(self, row: int) -> tuple[Tensor, Tensor]:
        """What is committed of a row: features [n, D], tokens [n]."""
        known = self.known[row]
        return self.features[row, :known], self.tokens[row, 1 : known + 1]


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
