"""Rollouts of a language model along texts that predict after several of its layers, with a weight for each exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from specframe import CompositionError, InputError
from specframe.plugin import Chunks, Student
from specframe_models.nested.schedules import Curriculum, chances, enabled, weights

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import ExitingModel, Teacher, Trainable


class Sorted:
    """Each exit's predictions along the texts, with equal weights: sorted fine-tuning (Kavehzadeh et al. 2024, S2D).

    The paper's loss is the sum over the exits' losses, which is the mean times their number. On the target's texts and
    distributions, this trains one drafter with several depths, for the drafter `nested`.

    Args:
        exits: numbers of layers of the sub-models, ascending; include the model's own number to train the whole model.
    """

    def __init__(self, *, exits: list[int]) -> None:
        if not exits or exits != sorted(set(exits)) or exits[0] < 1:
            raise InputError(f"sorted: exits are ascending numbers of layers from 1 on, not {exits}")
        self.exits = exits

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Chunks:
        """Returns a part for each exit; `progress` is ignored. Raises InputError for layers that the model lacks."""
        model = require_exits(drafter, "sorted")
        return along(model.read_exits(teacher.tokens, self.exits), [1.0] * len(self.exits), teacher)


class LayerSkip:
    """LayerSkip's training (Elhoushi et al. 2024, arXiv 2404.16710, Section 4.1): early-exit losses and layer dropout.

    A model's training continues with losses at its exits, each read by the model's own final norm and LM head. Layers
    are dropped for texts at random, later ones more often. The drafter `self` then uses the first layers of the trained
    target.

    Without training, as in validation, no layer is dropped, and every exit that is ever enabled counts.

    Args:
        dropout: probability of dropping the last layer for a text, p_max (the paper: 0.1 or 0.2).
        scale: the weight of early exits, e_scale (the paper: 0.1 to 1).
        curriculum: which exits count in a step, in addition to the last layer's.
        every: rotational: the distance of the exits that count in one step, R.
        growing: whether the probabilities grow from 0 in the course of training, for a model trained from scratch.
    """

    def __init__(
        self,
        *,
        dropout: float = 0.1,
        scale: float = 0.2,
        curriculum: Curriculum = "rotational",
        every: int = 8,
        growing: bool = False,
    ) -> None:
        if not 0 <= dropout < 1:
            raise InputError(f"layer-skip: dropout is a chance from 0 to below 1, not {dropout}")
        if scale <= 0:
            raise InputError(f"layer-skip: scale must be above 0, not {scale}")
        if every < 1:
            raise InputError(f"layer-skip: every must be at least 1, not {every}")
        self.dropout, self.scale, self.curriculum = dropout, scale, curriculum
        self.every, self.growing = every, growing
        self._step, self._total = 0, 1

    def begin(self, step: int, total: int) -> None:
        """Records the number of the next step."""
        self._step, self._total = step, total

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Chunks:
        """Returns a part for each enabled exit. Dropped layers are drawn from torch's generator."""
        model = require_exits(drafter, "layer-skip")
        layers = model.depth
        if not model.module.training:
            exits = [exit for exit in range(1, layers + 1) if exit > 1 or layers == 1]
            return along(model.read_exits(teacher.tokens, exits), weights(exits, layers, self.scale), teacher)
        exits = enabled(self.curriculum, layers, self._step, self._total, self.every)
        exits = [exit for exit in exits if exit > 1 or layers == 1]  # the first layer's exit has weight 0
        growth = self._step / max(1, self._total - 1) if self.growing else 1.0
        chance = torch.tensor(chances(layers, self.dropout, growth), device=teacher.tokens.device)
        drawn = torch.rand(layers, len(teacher.tokens), device=chance.device)
        layer_mask = drawn >= chance[:, None] if self.dropout else None
        return along(model.read_exits(teacher.tokens, exits, layer_mask), weights(exits, layers, self.scale), teacher)


def along(exits: Sequence[Callable[[], Tensor]], shares: Sequence[float], teacher: Teacher) -> Chunks:
    """Returns a part per exit, with predictions at every position of the texts; logits are computed when scored."""
    position = torch.arange(teacher.tokens.shape[1], device=teacher.tokens.device).expand_as(teacher.tokens)

    def made(logits: Callable[[], Tensor]) -> Student:
        return Student(logits(), position, teacher.mask, torch.ones_like(position[0]))

    return Chunks([partial(made, logits) for logits in exits], shares)


def require_exits(drafter: Trainable, rollout: str) -> ExitingModel:
    """Returns the drafter. Raises CompositionError for one that cannot predict after its inner layers."""
    if not hasattr(type(drafter), "read_exits"):
        raise CompositionError(
            f"the rollout {rollout!r} trains a language model of several depths, such as the drafter `model`; "
            f"{type(drafter).__name__} is none"
        )
    return drafter  # type: ignore[return-value]
