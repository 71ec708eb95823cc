"""Training of the head `acceptance`: the drafter is frozen, and the head learns whether its tokens are accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specframe import CompositionError
from specframe.plugin import Chunks, scored
from specframe_models.specdecpp.head import AcceptanceNetwork

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Rollout, Student, Teacher, Trainable


class AcceptanceRollout:
    """Another rollout's predictions, each with the confidence of the head `acceptance`.

    The nested rollout unrolls the drafter unchanged; the head then reads its features.

    The confidence of a token assumes that all its ancestors are accepted. In a text, which is assumed to be the
    target's own, a level therefore counts only if the levels above it would have been drafted as in the text.

    Args:
        rollout: how the drafter is unrolled, ideally about as deep as it will draft.
        reached: whether only levels count that a chain of most probable tokens reaches; false: all count.
    """

    def __init__(self, *, rollout: Rollout, reached: bool = True) -> None:
        self.rollout = rollout
        self.reached = reached

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Returns the nested rollout's predictions. Raises CompositionError for drafters without the head
        `acceptance`.
        """
        network = drafter.module
        if not isinstance(network, AcceptanceNetwork):
            raise CompositionError(
                "the rollout 'acceptance' trains the head 'acceptance': give the drafter `head: {use: acceptance}`"
            )
        student = self.rollout(drafter, teacher, progress)
        if isinstance(student, Chunks):
            raise CompositionError("the rollout 'acceptance' takes a student whole: leave the nested one's `chunk` out")
        if student.hidden is None:
            raise CompositionError(
                "the rollout 'acceptance' needs a nested rollout that gives what the head reads, such as multi-step"
            )
        mask = student.mask & reached(student, teacher) if self.reached else student.mask
        return replace(student, confidence=network(student.hidden), mask=mask)


def reached(student: Student, teacher: Teacher) -> Tensor:
    """Returns whether the most probable tokens of the levels above a prediction are the text's, [B, M] bool.

    Levels that the student does not have count as true.
    """
    batch, length = teacher.tokens.shape
    following = scored.gather_positions(teacher.tokens, (student.position + 1).clamp(max=length - 1))
    right = student.argmax == following  # [B, M]
    levels = int(student.level.max())
    rows = torch.arange(batch, device=right.device)[:, None]
    place = rows, student.position - student.level + levels, student.level - 1  # the last true feature, and the depth
    chains = right.new_ones(batch, length + levels, levels + 1)
    chains[:, :, 1:].index_put_(place, right)
    return chains.cumprod(-1)[place].bool()
