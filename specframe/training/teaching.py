"""Sources of teachers: forward passes of the target, or a cache of its features on disk."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specframe.kernel.errors import CompositionError, WeightsError
from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.predictions import LazyTeacher
from specframe.kernel.training import Rollout, RolloutMethods, Trainable
from specframe.kernel.types import Teacher
from specframe.neural.heads import DivisibleTarget
from specframe.neural.weights.checkpoint import reason, replacing
from specframe.sampling.laws import first_argmax
from specframe.training.processes import Processes
from specframe.training.texts import Texts

PLACES, PLACES_ON_DEVICE = 128, 8192
"""Positions whose logits over the whole vocabulary are in memory at a time, on a CPU and elsewhere."""

log = logging.getLogger(__name__)

SHARD = 256
"""Number of texts per file of the cache."""

NORMALISER, BEST = "normaliser", "best"
"""Names of the parts of the target's laws that the cache holds in addition to the taps."""


Teaching = Callable[[Tensor], Teacher]
"""A source of teachers: the target's outputs for texts [B], indices on the host."""


class SupportLaws:
    """The target's LM head over a drafter's support, and the data that losses need about the tokens outside it.

    These are two numbers per position: the log-normaliser over the whole vocabulary, and the most probable token. A
    target whose head cannot be split has no support.
    """

    def __init__(self, target: NeuralTarget, support: Tensor | None) -> None:
        self.support = support if isinstance(target, DivisibleTarget) else None
        self._head: Callable[[Tensor], Tensor] = target.head
        if self.support is not None and isinstance(target, DivisibleTarget):
            self._head = target.head_for(self.support)

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """The logits for features of the tap `last`, in the target's precision, independent of the training's."""
        with torch.autocast(features.device.type, enabled=False):
            return self._head(features)

    @torch.no_grad()
    def summary(self, teacher: Teacher) -> tuple[Tensor, Tensor]:
        """The log-normaliser, [B, L] float32, and the most probable token, [B, L] int64; 0 at masked positions."""
        places = teacher.mask.flatten().nonzero().squeeze(1)
        normaliser = torch.zeros(teacher.mask.numel(), device=places.device)
        best = torch.zeros_like(normaliser, dtype=torch.int64)
        for part in places.split(PLACES if places.device.type == "cpu" else PLACES_ON_DEVICE):
            logits = (
                teacher.part(part).logits[0] if isinstance(teacher, LazyTeacher) else teacher.logits.flatten(0, 1)[part]
            )
            normaliser[part], best[part] = logits.float().logsumexp(-1), first_argmax(logits)
        return normaliser.view_as(teacher.mask), best.view_as(teacher.mask)

    def over_support(self, teacher: Teacher, normaliser: Tensor, best: Tensor) -> LazyTeacher:
        """This teacher with logits over the support only."""
        features, support = teacher.features, self.support
        return LazyTeacher(teacher.tokens, teacher.mask, features, self.logits, support, normaliser, best)


def ask(target: NeuralTarget, texts: Texts, rows: Tensor) -> Teacher:
    """The target's outputs for texts [B], read with their further inputs, such as images."""
    tokens, mask = texts.batch(rows)
    if not (inputs := texts.inputs_of(rows)):
        return target.teach(tokens, mask)
    return target.teach(tokens, mask, inputs=inputs)


def require_texts(texts: Texts, rollout: object) -> None:
    """Raises CompositionError for texts with images if the rollout runs the target on other texts than the data's."""
    if texts.inputs:
        raise CompositionError(f"the rollout {type(rollout).__name__} rewrites texts: it takes none with images")


class Unasked(Teacher):
    """A lazy teacher, which runs the target when features or logits are first read; losses on the text need neither."""

    def __init__(self, target: NeuralTarget, texts: Texts, rows: Tensor) -> None:
        tokens, mask = texts.batch(rows)
        self.__dict__.update(tokens=tokens, mask=mask, asking=lambda: ask(target, texts, rows))

    @cached_property
    def answers(self) -> Teacher:
        """Returns the target's outputs, in its own precision, independent of the training's."""
        with torch.autocast(self.tokens.device.type, enabled=False):
            return self.__dict__["asking"]()

    @property
    def features(self) -> Mapping[str, Tensor]:
        """The taps' features, [B, L, D] each."""
        return self.answers.features

    @property
    def logits(self) -> Tensor:
        """The law after each position, [B, L, V]."""
        return self.answers.logits


class OnlineTeachers:
    """Teachers by a forward pass of the target for every batch whose features or laws are read."""

    def __init__(self, target: NeuralTarget, texts: Texts) -> None:
        self.target = target
        self.texts = texts

    def __call__(self, rows: Tensor) -> Teacher:
        """The target's outputs for texts [B]."""
        return Unasked(self.target, self.texts, rows)


class SupportTeachers:
    """Teachers by a forward pass of the target for every batch, with lazy laws over a drafter's support."""

    def __init__(self, target: NeuralTarget, texts: Texts, support: Tensor | None) -> None:
        self.target = target
        self.texts = texts
        self.laws = SupportLaws(target, support)
        target.request(frozenset({"last"}))  # of which laws are made

    def __call__(self, rows: Tensor) -> Teacher:
        """The target's outputs for texts [B]."""
        teacher = ask(self.target, self.texts, rows)
        return teacher if self.laws.support is None else self.laws.over_support(teacher, *self.laws.summary(teacher))


def taught_by(rollout: Rollout, target: NeuralTarget, texts: Texts, drafter: Trainable) -> Teaching:
    """Teachers of texts [B] for a rollout that rewrites texts or runs the target itself: see `RolloutMethods`."""
    require_texts(texts, rollout)
    methods = RolloutMethods.of(rollout)
    if (rewrite := methods.rewrite) is not None:
        return lambda rows: target.teach(*rewrite(drafter, *texts.batch(rows)))
    ask = methods.ask
    assert ask is not None, "the texts are taught as they are"
    return lambda rows: ask(target, drafter, *texts.batch(rows))


class TranslatedTeachers:
    """Teachers of another source, in the tokens of a drafter of another vocabulary."""

    def __init__(self, teaching: Teaching, translate: Callable[[Teacher, Tensor], Teacher]) -> None:
        self.teaching = teaching
        self.translate = translate

    def __call__(self, rows: Tensor) -> Teacher:
        """The target's outputs for texts [B], in one translated text each."""
        teacher = self.teaching(rows)
        return self.translate(teacher, teacher.mask)


class Cached:
    """The target's features from safetensors shards; laws are recomputed from `last` by the target's head.

    Laws have the vocabulary's size and features the hidden size, so storing only features makes the cache a
    hundred times smaller, at the cost of one matrix product per batch. A shard holds the features of each text
    without padding, as `<tap>.<text>`: [length, D] in the target's dtype. The folder's name identifies the texts
    and the target, so that caches cannot be mixed up.

    For a drafter with a `support` the matrix product has only the rows of its tokens. For the other tokens losses need
    two numbers per position, stored with the features: the log-normaliser, which gives their share of the law, and the
    most probable token.
    """

    def __init__(
        self,
        target: NeuralTarget,
        taps: frozenset[str],
        texts: Texts,
        folder: Path,
        processes: Processes,
        support: Tensor | None = None,
    ) -> None:
        self.target = target
        self.laws = SupportLaws(target, support)
        self.texts = texts
        self.taps = sorted(taps | {"last"})
        target.request(frozenset(self.taps))  # laws are made from `last`, which a drafter need not read
        self.folder = folder / _name(target, self.taps, texts)
        self._fill(processes)
        self._files = [safe_open(self._path(number), framework="pt") for number in range(self._shards)]

    def __call__(self, rows: Tensor) -> Teacher:
        """The target's outputs for texts [B]."""
        tokens, mask = self.texts.batch(rows)
        features = {tap: self._read(tap, rows, tokens.shape[1]) for tap in self.taps}
        if self.laws.support is None:
            return LazyTeacher(tokens, mask, features, self.laws.logits)
        normaliser = self._read(NORMALISER, rows, tokens.shape[1])
        best = self._read(BEST, rows, tokens.shape[1]).long()
        return LazyTeacher(tokens, mask, features, self.laws.logits, self.laws.support, normaliser, best)

    def _read(self, name: str, rows: Tensor, length: int) -> Tensor:
        """Reads the cached values of texts [B] under this name, padded with 0: [B, length, ..]."""
        parts: list[Tensor] = [self._files[row // SHARD].get_tensor(f"{name}.{row}") for row in rows.tolist()]
        padded = parts[0].new_zeros(len(parts), length, *parts[0].shape[1:])
        for row, part in enumerate(parts):
            padded[row, : len(part)] = part
        return padded.to(self.target.device, non_blocking=True)

    @property
    def _shards(self) -> int:
        return -(-len(self.texts) // SHARD)

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.safetensors"

    def _fill(self, processes: Processes) -> None:
        """Writes the missing shards, distributed over the processes."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for number in range(processes.rank, self._shards, processes.count):
                if not self._path(number).exists():
                    read, all_texts = number * SHARD, len(self.texts)
                    log.warning("features: %d of %d texts are in %s", read, all_texts, self.folder)  # it takes minutes
                    with replacing(self._path(number)) as path:
                        save_file(self._features(number), path)
        except (OSError, SafetensorError) as error:
            raise WeightsError(
                f"cannot write the teacher cache to {self.folder}: {reason(error)}. Give train.cache a "
                "folder with more room, or leave it out: features are then computed as they are needed"
            ) from error
        processes.wait()

    def _features(self, number: int) -> dict[str, Tensor]:
        """A shard's tensors."""
        texts = torch.arange(number * SHARD, min((number + 1) * SHARD, len(self.texts)))
        texts = texts[self.texts.counts[texts].argsort()]  # texts of similar length together: little padding
        tensors: dict[str, Tensor] = {}
        for rows in torch.split(texts, 8):
            teacher = ask(self.target, self.texts, rows)
            stored = {tap: teacher.features[tap] for tap in self.taps}
            normaliser, best = self.laws.summary(teacher)
            stored |= {NORMALISER: normaliser, BEST: best.int()}
            for name, values in stored.items():
                for row, value in zip(rows.tolist(), values, strict=True):
                    tensors[f"{name}.{row}"] = value[: int(self.texts.counts[row])].to("cpu", copy=True).contiguous()
        return tensors


def _name(target: NeuralTarget, taps: list[str], texts: Texts) -> str:
    """A fingerprint of the texts, the taps and the target, including its output for a probe."""
    probe = torch.arange(16, device=target.device)[None] % target.vocab_size
    features = target.teach(probe, torch.ones_like(probe, dtype=torch.bool)).features["last"]
    config = json.dumps(target.config.to_dict(), sort_keys=True, default=str)
    identity = [
        config,
        str(target.dtype),
        texts.digest,
        *taps,
        NORMALISER,
        BEST,
        *(f"{x:.2g}" for x in features.flatten().tolist()),
    ]
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
