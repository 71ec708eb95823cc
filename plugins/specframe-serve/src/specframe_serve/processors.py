"""Logits processors for what clients send: penalties, biases, a least length.

Each is a function of the tokens of a row and its logits alone, and equal where its settings are, as `Sampling` asks of
a processor. Order and formulas are those of vLLM's sampler: bias, least length, repetition, frequency, presence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe_serve.errors import ApiError
from specframe_serve.protocol import Generation


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
        return logits.index_fill(1, torch.tensor(self.ends, device=logits.device), -torch.inf)


@dataclass(frozen=True)
class Penalties:
    """Lowers the logits of tokens that the text has already.

    Repetition (CTRL, https://arxiv.org/abs/1909.05858, 4.1) looks at prompt and answer: positive logits are divided by
    it, others multiplied. Frequency and presence (OpenAI's API) look at the answer: frequency is subtracted once for
    each time that a token occurs, presence once for all of them.
    """

    prompt: int
    """Tokens of the prompt."""
    repetition: float
    frequency: float
    presence: float

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """The lowered logits [R, V]."""
        counts = torch.zeros_like(logits)
        answer = tokens[:, self.prompt :]
        counts.scatter_add_(1, answer, torch.ones_like(answer, dtype=logits.dtype))
        if self.repetition != 1:
            seen = (counts > 0).scatter(1, tokens[:, : self.prompt], True)
            lowered = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = torch.where(seen, lowered, logits)
        return logits - self.frequency * counts - self.presence * (counts > 0)


def processors_of(
    asked: Generation, prompt: int, ends: Collection[int], vocab: int
) -> tuple[Bias | LeastLength | Penalties, ...]:
    """The processors that a request asks for, of a row whose prompt has so many tokens and which `ends` end.

    Raises ApiError for token ids that the target does not have.
    """
    found: list[Bias | LeastLength | Penalties] = []
    if asked.logit_bias:
        found.append(Bias(tuple(sorted((_token(name, vocab), value) for name, value in asked.logit_bias.items()))))
    if asked.min_tokens and ends:
        found.append(LeastLength(prompt, asked.min_tokens, tuple(sorted(ends))))
    penalties = Penalties(prompt, asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty)
    if penalties != Penalties(prompt, 1.0, 0.0, 0.0):
        found.append(penalties)
    return tuple(found)


def require_tokens(tokens: Collection[int], vocab: int, field: str) -> None:
    """Raises ApiError for token ids outside a vocabulary of `vocab` tokens."""
    if any(not 0 <= token < vocab for token in tokens):
        raise ApiError(
            422,
            f"{field}: token ids are numbers from 0 to {vocab - 1} here",
            code="invalid_field",
            field=field,
        )


def _token(name: str, vocab: int) -> int:
    token = int(name) if name.isascii() and name.isdecimal() and len(name) < 12 else -1
    require_tokens([token], vocab, "logit_bias")
    return token
