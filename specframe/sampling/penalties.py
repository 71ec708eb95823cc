"""Logits processors that recipes and requests name: biases, bans, a minimum length, penalties.

Each is a function of a row's tokens and logits alone, as `Sampling` requires, and equal to others of equal settings.
Order and formulas are those of vLLM's sampler: bias, minimum length, repetition, frequency, presence.
Bans come last; a grammar (`grammar.py`) comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bias:
    """Adds a number to the logits of some tokens."""

    added: tuple[tuple[int, float], ...]
    """Token ids and their logit biases."""

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """The biased logits [R, V]."""
        ids, values = zip(*self.added, strict=True)
        return logits.index_add(
            1,
            torch.tensor(ids, device=logits.device),
            torch.tensor(values, dtype=logits.dtype, device=logits.device).expand(len(logits), -1),
        )


@dataclass(frozen=True)
class LeastLength:
    """Bans the tokens that end a text until it has a minimum length."""

    prompt: int
    """Tokens of the prompt, which do not count."""
    least: int
    ends: tuple[int, ...]

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] with -inf at the ends of a text that is too short."""
        if tokens.shape[1] - self.prompt >= self.least:
            return logits
        banned = logits.index_fill(1, torch.tensor(self.ends, device=logits.device), -torch.inf)
        return _unless_all(logits, banned)  # a grammar may allow nothing else


@dataclass(frozen=True)
class Penalties:
    """Lowers the logits of tokens that already occur in the text.

    Repetition (CTRL, https://arxiv.org/abs/1909.05858, 4.1) applies to prompt and continuation: positive logits are
    divided by it, others multiplied. Frequency and presence (OpenAI's API) apply to the continuation alone: frequency
    is subtracted once for each occurrence of a token, presence once if the token occurs.
    """

    prompt: int
    """Tokens of the prompt."""
    repetition: float
    frequency: float
    presence: float
    ignored: int = 0
    """Number of the prompt's first tokens to which repetition does not apply."""

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """The lowered logits [R, V]."""
        counts = torch.zeros_like(logits)
        answer = tokens[:, self.prompt :]
        counts.scatter_add_(1, answer, torch.ones_like(answer, dtype=logits.dtype))
        if self.repetition != 1:
            seen = (counts > 0).scatter(1, tokens[:, self.ignored : self.prompt], True)
            lowered = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = torch.where(seen, lowered, logits)
        return logits - self.frequency * counts - self.presence * (counts > 0)


@dataclass(frozen=True)
class NoRepeats:
    """Bans tokens that would repeat an n-gram of the text, prompt included."""

    size: int
    """Number of tokens of an n-gram."""

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] with -inf at tokens that would complete an n-gram of the text once more."""
        from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

        return _unless_all(logits, NoRepeatNGramLogitsProcessor(self.size)(tokens, logits))


@dataclass(frozen=True)
class BannedWords:
    """Bans the last token of each word after a text that ends with the word's other tokens."""

    words: tuple[tuple[int, ...], ...]

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] with -inf at the tokens that would complete a word."""
        from transformers.generation.logits_process import NoBadWordsLogitsProcessor

        return _unless_all(logits, NoBadWordsLogitsProcessor([list(word) for word in self.words])(tokens, logits))


def _unless_all(logits: Tensor, banned: Tensor) -> Tensor:
    """The banned logits [R, V]; rows with every token banned keep their own, so that they have a distribution."""
    return torch.where(banned.isneginf().all(1, keepdim=True), logits, banned)
