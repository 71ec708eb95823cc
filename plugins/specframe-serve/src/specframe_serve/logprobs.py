"""Log probabilities of committed tokens and of prompts: the target's own, before temperature and processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.plugin import NeuralTarget

CHUNK = 64
"""The positions whose log probabilities are made at a time: each takes a vocabulary of float32."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The target's own log probabilities of one committed token, before temperature and top-p."""

    chosen: float
    top: list[tuple[int, float]]
    """The likeliest tokens, as many as were asked for."""


class PromptScores:
    """Log probabilities of a prompt's tokens from the second on, made in steps from the target's features of it."""

    def __init__(self, target: NeuralTarget, prompt: Sequence[int], features: Tensor, count: int) -> None:
        """The `count` likeliest of each position, by the tap `last` [L, D]."""
        self._target, self._count = target, count
        self._tokens, self._features = prompt[1:], features
        self.found: list[TokenLogprobs] = []

    @torch.inference_mode()
    def step(self) -> bool:
        """Makes those of a few further positions; returns True once all are there."""
        start = len(self.found)
        tokens = self._tokens[start : start + CHUNK]
        if tokens:
            logits = self._target.head(self._features[start : start + len(tokens)])
            self.found += logprobs(logits, tokens, self._count)
        return len(self.found) == len(self._tokens)


def logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """The log probability of each token by its logits [n, V], with the `count` likeliest of each."""
    laws = logits.float().log_softmax(-1)  # [n, V]
    chosen = laws.gather(1, torch.tensor(tokens, device=laws.device)[:, None])[:, 0].tolist()
    best = laws.topk(count)
    return [
        TokenLogprobs(own, list(zip(ids, values, strict=True)))
        for own, ids, values in zip(chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    ]
