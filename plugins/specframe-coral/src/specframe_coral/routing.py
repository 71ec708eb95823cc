"""Training of the router, the second stage of CORAL: the drafter is frozen, the router learns group probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import CompositionError
from specframe.neural import NeuralDrafter
from specframe_coral.groups import group_masses
from specframe_coral.router import RouterNetwork

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Chunks, Rollout, Student, Teacher, Trainable


class RoutingRollout:
    """Another rollout's predictions with the router's group logits instead of token logits: [B, M, N].

    The nested rollout unrolls the drafter unchanged; the router predicts from the predicted features which groups of
    tokens come next. No rows of the LM head are read.

    Args:
        rollout: how the drafter is unrolled, ideally as in its own training.
    """

    def __init__(self, *, rollout: Rollout) -> None:
        self.rollout = rollout

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student | Chunks:
        """Returns the nested rollout's predictions. Raises CompositionError for a drafter without the head `router`."""
        router = drafter.module
        if not isinstance(router, RouterNetwork) or not isinstance(drafter, NeuralDrafter):
            raise CompositionError(
                "the rollout 'routing' trains the head 'router': give the drafter `head: {use: router}`"
            )
        return self.rollout(drafter.reading(router), teacher, progress)


class RoutingLoss:
    """- sum over groups of q_router log p_router (Weng et al. 2025, CORAL, Eq. 9), at temperature 1.

    q_router is the target's probability of each group, p_router the softmax of the router's logits. The number of
    groups is taken from the logits.
    """

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the mean over scored predictions, a scalar."""
        rows = torch.arange(len(student.position), device=student.position.device)[:, None]
        wide = torch.promote_types(student.logits.dtype, torch.float32)
        law = teacher.logits[rows, student.position].to(wide).softmax(-1)  # [B, M, V]
        wanted = group_masses(law, student.logits.shape[-1])  # [B, M, N]
        surprise = -(wanted * student.logits.to(wide).log_softmax(-1)).sum(-1)  # [B, M]
        return torch.where(student.mask, surprise, 0).sum() / student.mask.sum().clamp(min=1)
