"""The losses of a student, whole or in parts of which only one has its logits at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import Loss
from specframe.kernel.types import Chunks, Student, Teacher


def scored(losses: Sequence[Loss], made: Student | Chunks, teacher: Teacher) -> list[Tensor]:
    """Each loss as a scalar, in float32 or better; of parts, the mean by their masked predictions.

    A part's logits are forgotten once it is scored, and made again for its gradients: the price is the LM head's
    forward pass a second time. Raises CompositionError for a loss that compares rows, which parts would change.
    """
    if isinstance(made, Student):
        return [loss(made, teacher).float() for loss in losses]
    if any(not getattr(loss, "rowwise", True) for loss in losses):
        raise CompositionError(
            "a loss that compares the rows of a batch cannot be taken in parts: leave the rollout's `chunk` out"
        )
    total: Tensor | float = 0.0
    count: Tensor | int = 0
    for part in made.parts:
        score = partial(_sums, losses, part, teacher)
        values, seen = checkpoint(score, use_reentrant=False) if torch.is_grad_enabled() else score()
        total, count = total + values, count + seen
    assert isinstance(total, Tensor) and isinstance(count, Tensor)
    return list((total / count.clamp(min=1)).unbind())


def _sums(losses: Sequence[Loss], part: Callable[[], Student], teacher: Teacher) -> tuple[Tensor, Tensor]:
    """Each loss summed over a part's predictions, and how many they are."""
    student = part()
    seen = student.mask.sum()
    return torch.stack([loss(student, teacher).float() for loss in losses]) * seen, seen


def students(made: Student | Chunks) -> Iterator[Student]:
    """The student, or its parts one by one."""
    if isinstance(made, Student):
        yield made
    else:
        for part in made.parts:
            yield part()
