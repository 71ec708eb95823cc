"""The target's laws over the tokens that a drafter proposes, made of features where they are read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.lazy import LazyTeacher
from specframe.kernel.types import Teacher
from specframe.neural.heads import DivisibleTarget

PLACES = 128
"""Positions whose logits over the whole vocabulary are in memory at a time."""


class SupportLaws:
    """The target's LM head over a drafter's support, and what a loss needs of the tokens outside it.

    That is two numbers a position: the logarithm of the normaliser over the whole vocabulary, and the most probable
    token. A target whose head cannot be divided has no support.
    """

    def __init__(self, target: NeuralTarget, support: Tensor | None) -> None:
        self.support = support if isinstance(target, DivisibleTarget) else None
        self._head: Callable[[Tensor], Tensor] = target.head
        if self.support is not None and isinstance(target, DivisibleTarget):
            self._head = target.head_for(self.support)

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """The logits of features of the tap `last`, in the target's own precision whatever the training's."""
        with torch.autocast(features.device.type, enabled=False):
            return self._head(features)

    @torch.no_grad()
    def summary(self, teacher: Teacher) -> tuple[Tensor, Tensor]:
        """The normaliser, [B, L] float32, and the most probable token, [B, L] int64; 0 where no law counts."""
        places = teacher.mask.flatten().nonzero().squeeze(1)
        normaliser = torch.zeros(teacher.mask.numel(), device=places.device)
        best = torch.zeros_like(normaliser, dtype=torch.int64)
        for part in places.split(PLACES):
            logits = (
                teacher.part(part).logits[0] if isinstance(teacher, LazyTeacher) else teacher.logits.flatten(0, 1)[part]
            )
            normaliser[part] = logits.float().logsumexp(-1)
            best[part] = logits.argmax(-1)
        return normaliser.view_as(teacher.mask), best.view_as(teacher.mask)

    def over_support(self, teacher: Teacher, normaliser: Tensor, best: Tensor) -> LazyTeacher:
        """The same teacher with logits over the support alone."""
        features, support = teacher.features, self.support
        return LazyTeacher(teacher.tokens, teacher.mask, features, self.logits, support, normaliser, best)
