"""Logits processors that recipes and requests name: biases, bans, a least length, penalties.

Each is a function of a row's tokens and its logits alone, and equal where its settings are, as `Sampling` asks of a
processor. Order and formulas are those of vLLM's sampler: bias, least length, repetition, frequency, presence.
Bans come last; a grammar, which has a file of its own, comes first.
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
        """The moved logits [R, V]."""
        ids, values = zip(*self.added, strict=True)
        return logits.index_add(
            1,
            torch.tensor(ids, device=logits.device),
            torch.tensor(values, dtype=logits.dtype, device=logits.device).expand(len(logits), -1),
        )


@dataclass(frozen=True)
class LeastLength:
    """Bans the tokens that end a text until it has some length."""

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
    """Lowers the logits of tokens that the text has already.

    Repetition (CTRL, https://arxiv.org/abs/1909.05858, 4.1) counts prompt and continuation: positive logits are divided
    by it, others multiplied. Frequency and presence (OpenAI's API) count the continuation alone: frequency is
    subtracted once for each time that a token occurs, presence once for all of them.
    """

    prompt: int
    """Tokens of the prompt."""
    repetition: float
    frequency: float
    presence: float
    ignored: int = 0
    """First tokens of the prompt that repetition does not count."""

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
    """Bans the token that would make some n-gram of the text, prompt included, occur once more."""

    size: int
    """Tokens of an n-gram."""

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] with -inf at the last token of each n-gram that the text has begun again."""
        from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

        return _unless_all(logits, NoRepeatNGramLogitsProcessor(self.size)(tokens, logits))


@dataclass(frozen=True)
class BannedWords:
    """Bans the last token of each word, after a text that ends in the word's other tokens."""

    words: tuple[tuple[int, ...], ...]

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] with -inf at the tokens that would complete a word."""
        from transformers.generation.logits_process import NoBadWordsLogitsProcessor

        return _unless_all(logits, NoBadWordsLogitsProcessor([list(word) for word in self.words])(tokens, logits))


def _unless_all(logits: Tensor, banned: Tensor) -> Tensor:
    """The banned logits [R, V]; rows in which every token is banned keep theirs, and so a distribution."""
    return torch.where(banned.isneginf().all(1, keepdim=True), logits, banned)
