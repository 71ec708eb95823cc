"""The router's training, the second stage of CORAL's two: the drafter is fixed, the router learns where mass lies."""

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
    """Another rollout's predictions with the router's choice instead of tokens' logits: [B, M, N].

    The nested rollout unrolls the drafter, unchanged; from the features it predicts the router predicts
    which groups of tokens come next. No row of the LM head is read.

    Args:
        rollout: how the drafter is unrolled: best as it was trained.
    """

    def __init__(self, *, rollout: Rollout) -> None:
        self.rollout = rollout

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student | Chunks:
        """The nested rollout's predictions. Raises CompositionError for a drafter without the head `router`."""
        router = drafter.module
        if not isinstance(router, RouterNetwork) or not isinstance(drafter, NeuralDrafter):
            raise CompositionError(
                "the rollout 'routing' trains the head 'router': give the drafter `head: {use: router}`"
            )
        return self.rollout(drafter.reading(router), teacher, progress)


class RoutingLoss:
    """- sum over groups of q_router log p_router (Weng et al. 2025, CORAL, Eq. 9), at temperature 1.

    q_router is the target's probability of each group, p_router the law that the router's logits make. How many
    groups there are, the logits show.
    """

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        rows = torch.arange(len(student.position), device=student.position.device)[:, None]
        wide = torch.promote_types(student.logits.dtype, torch.float32)
        law = teacher.logits[rows, student.position].to(wide).softmax(-1)  # [B, M, V]
        wanted = group_masses(law, student.logits.shape[-1])  # [B, M, N]
        surprise = -(wanted * student.logits.to(wide).log_softmax(-1)).sum(-1)  # [B, M]
        return torch.where(student.mask, surprise, 0).sum() / student.mask.sum().clamp(min=1)
