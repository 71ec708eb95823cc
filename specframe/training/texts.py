"""Tokenised training texts, flat in memory, and batches of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.errors import InputError
from specframe.training import documents
from specframe.training.encoding import Encoded, encode
from specframe.training.schedule import mix
from specframe.training.settings import TrainSettings

Piece = tuple[Tensor, Tensor]
"""Tokens [n] int32, and which of the positions count, [n] bool."""

HOLDOUT = 0x5EED
"""Sets the draw of the validation documents apart from the epochs' orders."""

MOST_HELD = 128
"""Largest number of validation documents: more only take time, and a validation should take at most a minute."""

ROUND = 32
"""Batches are padded to a multiple of this on a GPU, so that it sees few shapes; on a CPU to the longest text."""


@dataclass(frozen=True)
class Texts:
    """Texts one after the other: text t is tokens[start[t] : start[t + 1]]."""

    tokens: Tensor  # [T] int32
    mask: Tensor  # [T] bool, positions whose next-token law counts
    start: Tensor  # [texts + 1] int64, on the host

    def __len__(self) -> int:
        return len(self.start) - 1

    @cached_property
    def counts(self) -> Tensor:
        """Tokens of each text: [texts] int64, on the host."""
        return self.start.diff()

    @cached_property
    def digest(self) -> str:
        """A fingerprint of all tokens and masks."""
        parts = (self.tokens.cpu().numpy(), self.mask.cpu().numpy(), self.start.numpy())
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def to(self, device: torch.device) -> Texts:
        """The same texts with tokens and mask on the device."""
        return Texts(self.tokens.to(device), self.mask.to(device), self.start)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, L] int64, padded with 0, and mask [B, L], of texts [B] on the host.

        L is the longest text's length, on a GPU rounded up. The device is never waited for.
        """
        device = self.tokens.device
        length = int(self.counts[rows].max())
        if device.type != "cpu":
            length = -(-length // ROUND) * ROUND
        span = torch.stack([self.start[rows], self.start[rows + 1]]).to(device, non_blocking=True)
        index = span[0, :, None] + torch.arange(length, device=device)  # [B, L]
        inside = index < span[1, :, None]
        index = index.clamp(max=len(self.tokens) - 1)
        return self.tokens[index].long() * inside, self.mask[index] & inside


def load(settings: TrainSettings, tokenizer: Any, vocab_size: int) -> tuple[Texts, Texts]:
    """The texts to train on and those to validate on, of the settings' data.

    Whole documents are held back, chosen by the seed, before they are cut into texts of at most
    `settings.length` tokens. Raises InputError when nothing is left to train on.
    """
    read = [_marked(encode(document, tokenizer)) for document in documents.read(settings.data)]
    read = [piece for piece in read if len(piece[0]) > 1]
    if not read:
        raise InputError(f"train.data: no text in {', '.join(settings.data)}")
    if (highest := max(int(ids.max()) for ids, _ in read)) >= vocab_size:
        raise InputError(
            f"train.data: token {highest} is outside the target's vocabulary of {vocab_size}; "
            "the tokenizer belongs to another model"
        )
    generator = torch.Generator().manual_seed(mix(settings.seed, HOLDOUT))
    order: list[int] = torch.randperm(len(read), generator=generator).tolist()
    held = min(round(settings.validation * len(read)), MOST_HELD)
    if settings.validation:
        held = min(max(held, 1), len(read) - 1)
    shuffled = [read[index] for index in order]
    train, validation = make(settings, shuffled[held:]), make(settings, shuffled[:held])
    if not len(train):
        raise InputError(f"train.data: nothing in {', '.join(settings.data)} is to be predicted: no answers")
    return train, validation


def make(settings: TrainSettings, documents: Sequence[Piece]) -> Texts:
    """Texts of at most `length` tokens out of documents; those where nothing counts are left out."""
    if settings.pack and documents:
        documents = [(torch.cat([ids for ids, _ in documents]), torch.cat([marks for _, marks in documents]))]
    pieces = [
        (part, marks)
        for document in documents
        for part, marks in zip(*(torch.split(whole, settings.length) for whole in document), strict=True)
        if marks.any()
    ]
    lengths = torch.tensor([0] + [len(ids) for ids, _ in pieces])
    return Texts(
        tokens=torch.cat([torch.empty(0, dtype=torch.int32), *(ids for ids, _ in pieces)]),
        mask=torch.cat([torch.empty(0, dtype=torch.bool), *(marks for _, marks in pieces)]),
        start=lengths.cumsum(0),
    )


def _marked(encoded: Encoded) -> Piece:
    """Tokens, and the positions that count: those whose next token is part of an answer."""
    ids, answer = encoded
    return torch.tensor(ids, dtype=torch.int32), torch.tensor([*answer[1:], False], dtype=torch.bool)
