"""Log probabilities of committed tokens and of prompts: the target's, before temperature and processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.plugin import NeuralTarget

CHUNK = 64
"""Number of positions whose log probabilities are computed at a time; each needs a vocabulary of float32."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The target's log probabilities for one committed token, before temperature and top-p."""

    chosen: float
    top: list[tuple[int, float]]
    """The requested number of most likely tokens."""


class PromptScores:
    """Log probabilities of a prompt's tokens from the second on, computed in steps from the target's features."""

    def __init__(self, target: NeuralTarget, prompt: Sequence[int], features: Tensor, count: int) -> None:
        """Scores a prompt by the tap `last` [L, D], with the `count` most likely tokens of each position."""
        self._target, self._count = target, count
        self._tokens, self._features = prompt[1:], features
        self.found: list[TokenLogprobs] = []

    @torch.inference_mode()
    def step(self) -> bool:
        """Scores a few further positions; returns True when all are complete."""
        start = len(self.found)
        tokens = self._tokens[start : start + CHUNK]
        if tokens:
            logits = self._target.head(self._features[start : start + len(tokens)])
            self.found += logprobs(logits, tokens, self._count)
        return len(self.found) == len(self._tokens)


def logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """Returns the log probability of each token by its logits [n, V], with the `count` most likely of each position."""
    laws = logits.float().log_softmax(-1)  # [n, V]
    chosen = laws.gather(1, torch.tensor(tokens, device=laws.device)[:, None])[:, 0].tolist()
    best = laws.topk(count)
    return [
        TokenLogprobs(own, list(zip(ids, values, strict=True)))
        for own, ids, values in zip(chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    ]
