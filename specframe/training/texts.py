"""Tokenised training texts, flat in memory, and batches of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specframe.decoding.encoding import require_variables
from specframe.decoding.requests import is_by_token
from specframe.kernel.capabilities import ImageReader
from specframe.kernel.errors import InputError
from specframe.training import documents
from specframe.training.encoding import Encoded, encode, encode_seen
from specframe.training.schedule import mix
from specframe.training.settings import TrainSettings

log = logging.getLogger(__name__)

Piece = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Tokens [n] int32, the mask of positions to train on, [n] bool, and the target's further inputs."""

HOLDOUT = 0x5EED
"""Salt that makes the seed of the validation split differ from those of the epochs."""

MOST_HELD = 128
"""Largest number of validation documents, so that a validation takes at most a minute."""

ROUND = 32
"""On a GPU batches are padded to a multiple of this, to limit the number of shapes; on a CPU to the longest text."""


@dataclass(frozen=True)
class Texts:
    """Concatenated texts: text t is tokens[start[t] : start[t + 1]]."""

    tokens: Tensor  # [T] int32
    mask: Tensor  # [T] bool, positions whose next-token law counts
    start: Tensor  # [texts + 1] int64, on the host
    inputs: tuple[Mapping[str, Tensor], ...] = ()  # of each text, on the host; () where no text has any
    mixed: int = 0  # the number of texts, at the end, that are the mixture's

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
        hashed = hashlib.sha256(b"".join(part.tobytes() for part in parts))
        for inputs in self.inputs:
            for name, values in sorted(inputs.items()):
                hashed.update(name.encode() + values.numpy().tobytes())
        return hashed.hexdigest()

    def to(self, device: torch.device) -> Texts:
        """These texts with tokens and mask on the device."""
        return replace(self, tokens=self.tokens.to(device), mask=self.mask.to(device))

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, L] int64, padded with 0, and mask [B, L], of texts [B] on the host.

        L is the longest text's length, rounded up on a GPU. Does not synchronise with the device.
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

    def inputs_of(self, rows: Tensor) -> dict[str, Tensor]:
        """The further inputs of texts [B], concatenated; inputs with one number per token are 0 at padding.

        Raises InputError for images of different sizes, which cannot be batched.
        """
        chosen = [(self.inputs[row], int(self.counts[row])) for row in rows.tolist()] if self.inputs else []
        length = int(self.counts[rows].max())
        joined: dict[str, list[Tensor]] = {}
        by_token = {name for inputs, count in chosen for name, values in inputs.items() if is_by_token(values, count)}
        for inputs, _ in chosen:
            for name, values in inputs.items():
                padded = F.pad(values, (0, length - values.shape[1])) if name in by_token else values
                joined.setdefault(name, []).append(padded)
            for name in by_token - inputs.keys():
                joined.setdefault(name, []).append(torch.zeros(1, length, dtype=torch.int64))
        if odd := [name for name, parts in joined.items() if len({part.shape[1:] for part in parts}) > 1]:
            raise InputError(f"train.data: {odd[0]} of images of unlike sizes cannot be one batch; set train.batch=1")
        return {name: torch.cat(parts).to(self.tokens.device) for name, parts in joined.items()}


def load(
    settings: TrainSettings, tokenizer: Any, vocab_size: int, reader: ImageReader | None = None
) -> tuple[Texts, Texts]:
    """The training and validation texts of the settings' data and mixture.

    Whole documents are held back, chosen by the seed, before they are cut into texts of at most `settings.length`
    tokens; documents with equal first questions are held back together, so that no validation text is trained on.
    `reader` is the processor of a target with image inputs. Raises InputError if no training text is left, and for
    images that the target does not support.
    """
    mixed = settings.mixed
    sources = [("train.data", settings.data)] + ([("train.mixture", mixed.data)] if mixed else [])
    most = MOST_HELD // len(sources)
    parts = []
    for name, data in sources:
        read = _documents(name, data, settings, tokenizer, vocab_size, reader)
        generator = torch.Generator().manual_seed(mix(settings.seed, HOLDOUT))
        order: list[int] = torch.randperm(len(read), generator=generator).tolist()
        count = min(round(settings.validation * len(read)), most)
        if settings.validation:
            count = min(max(count, 1), len(read) - 1)
        shuffled = [read[index] for index in order]
        train = make(settings, [piece for group in shuffled[count:] for piece in group])
        if not len(train):
            raise InputError(f"{name}: nothing in {', '.join(data)} is to be predicted: no answers")
        parts.append((train, [piece for group in shuffled[:count] for piece in group]))
    pairs = zip_longest(*(pieces for _, pieces in parts))  # a validation unrolls the first texts only
    held_back = make(settings, [piece for each in pairs for piece in each if piece is not None])
    return (joined(parts[0][0], parts[1][0]) if mixed else parts[0][0]), held_back


def _documents(
    name: str, data: Sequence[str], settings: TrainSettings, tokenizer: Any, vocab_size: int, reader: ImageReader | None
) -> list[list[Piece]]:
    """The tokenised documents of a section's data, grouped by their first question.

    Raises InputError if there are none, if most are unusable, or any without `settings.skip`, and for tokens of
    another tokenizer.
    """
    variables = settings.chat_template_kwargs or {}
    require_variables(tokenizer, variables, "train")
    groups: dict[str, list[Piece]] = {}
    refused: list[InputError] = []
    count = 0
    for document in documents.read(data):
        count += 1
        if document.image is not None and reader is None:
            raise InputError(f"{document.origin}: the target reads texts alone, and this one has an image")
        try:
            pieces = [piece for piece in _read(document, tokenizer, reader, variables) if len(piece[0]) > 1]
        except InputError as error:
            if not settings.skip:
                raise
            refused.append(error)
            continue
        if pieces:
            groups.setdefault(document.question, []).extend(pieces)
    if refused and 2 * len(refused) >= count:
        raise refused[0]
    if refused:
        log.warning("%s: %d of %d texts are left out; the first: %s", name, len(refused), count, refused[0])
    read = list(groups.values())
    if not read:
        raise InputError(f"{name}: no text in {', '.join(data)}")
    if (highest := max(int(ids.max()) for group in read for ids, _, _ in group)) >= vocab_size:
        raise InputError(
            f"{name}: token {highest} is outside the target's vocabulary of {vocab_size}; "
            "the tokenizer belongs to another model"
        )
    return read


def joined(own: Texts, mixed: Texts) -> Texts:
    """The texts followed by those of a mixture."""
    inputs = [part.inputs or ({},) * len(part) for part in (own, mixed)]
    return Texts(
        tokens=torch.cat([own.tokens, mixed.tokens]),
        mask=torch.cat([own.mask, mixed.mask]),
        start=torch.cat([own.start, mixed.start[1:] + own.start[-1]]),
        inputs=(*inputs[0], *inputs[1]) if own.inputs or mixed.inputs else (),
        mixed=len(mixed),
    )


def make(settings: TrainSettings, documents: Sequence[Piece]) -> Texts:
    """Texts of at most `length` tokens from documents; fully masked ones are left out."""
    seen = [piece for piece in documents if piece[2]]
    if longest := max((len(ids) for ids, _, _ in seen if len(ids) > settings.length), default=0):
        raise InputError(
            f"train.length is {settings.length}: a text with an image stays whole, and has {longest} tokens"
        )
    if seen and settings.pack:
        raise InputError("train.pack: texts with images are not packed; leave it out")
    if settings.pack and documents:
        documents = [(torch.cat([ids for ids, _, _ in documents]), torch.cat([marks for _, marks, _ in documents]), {})]
    pieces = [
        (part, counted, inputs)
        for ids, marks, inputs in documents
        for part, counted in zip(*(torch.split(whole, settings.length) for whole in (ids, marks)), strict=True)
        if counted.any()
    ]
    lengths = torch.tensor([0] + [len(ids) for ids, _, _ in pieces])
    return Texts(
        tokens=torch.cat([torch.empty(0, dtype=torch.int32), *(ids for ids, _, _ in pieces)]),
        mask=torch.cat([torch.empty(0, dtype=torch.bool), *(marks for _, marks, _ in pieces)]),
        start=lengths.cumsum(0),
        inputs=tuple(inputs for _, _, inputs in pieces) if seen else (),
    )


def _read(
    document: documents.Document, tokenizer: Any, reader: ImageReader | None, variables: Mapping[str, Any]
) -> list[Piece]:
    if document.image is None or reader is None:
        return [_marked(sample, {}) for sample in encode(document, tokenizer, variables)]
    return [_marked(*encode_seen(document, reader, variables))]


def _marked(encoded: Encoded, inputs: Mapping[str, Tensor]) -> Piece:
    """Tokens, the mask of positions whose next token is part of an answer, and the inputs."""
    ids, answer = encoded
    return torch.tensor(ids, dtype=torch.int32), torch.tensor([*answer[1:], False], dtype=torch.bool), inputs
