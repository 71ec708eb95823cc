"""Chimera's forward for one path, as the paper has it: no cache, no mask, nothing batched."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specframe_chimera.drafter import Chimera


def gram_state(drafter: Chimera, tokens: list[int]) -> Tensor:
    """The state of the n-gram that ends a text of tokens, number by number (Section 3.2.1, Eq. 2)."""
    embedding = drafter.target.embed(torch.arange(drafter.target.vocab_size)).tolist()
    size = len(embedding[0])
    known = [x for token in tokens[-drafter.ngram :] for x in embedding[token]]
    x = [0.0] * (drafter.ngram * size - len(known)) + known  # a unigram and a bigram come first
    weights = {name: weight.tolist() for name, weight in drafter.module.ngrams.named_parameters()}
    into = [
        b + sum(w * v for w, v in zip(row, x, strict=True))
        for row, b in zip(weights["inner.weight"], weights["inner.bias"], strict=True)
    ]
    inner = [v + h / (1 + math.exp(-h)) for v, h in zip(x, into, strict=True)]
    outer = [sum(w * v for w, v in zip(row, inner, strict=True)) for row in weights["outer.weight"]]
    return torch.tensor(outer, dtype=torch.float64)


def state(drafter: Chimera, features: Tensor, tokens: list[int]) -> Tensor:
    """The full context encoder's last state, [D], for features [n, D] and n + k - 1 tokens (Section 3.2.2).

    Its input is exactly what may be seen, the features and then the n-grams, and the last of them sees it all.
    """
    grams = [gram_state(drafter, tokens[: end + 1]) for end in range(len(tokens))]
    entries = torch.cat([features, torch.stack(grams)])[None]
    positions = torch.tensor([*range(len(features)), *range(1, len(tokens) + 1)])[None]
    return drafter.module.layer(entries, positions, None)[0, -1]


def logits(drafter: Chimera, features: Tensor, tokens: list[int], level: int) -> Tensor:
    """The logits of head `level`, [V] (Eq. 3)."""
    inputs = state(drafter, features, tokens)
    if drafter.residual:
        inputs = torch.cat([inputs, features[-1]])
    output = drafter.module.heads[level - 1].weight @ inputs
    return output if drafter.head is None else drafter.target.head(output)
