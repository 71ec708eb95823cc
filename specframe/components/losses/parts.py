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
    """Each loss as a scalar, in float32 or better; of parts, the mean by their masked predictions or their weights.

    A part's logits are forgotten once it is scored, and made again for its gradients: the price is the LM head's
    forward pass a second time. Raises CompositionError for a loss that compares rows, which parts would change.
    """
    if isinstance(made, Student):
        return [loss(made, teacher).float() for loss in losses]
    if made.weights is None and any(not getattr(loss, "rowwise", True) for loss in losses):
        raise CompositionError(
            "a loss that compares the rows of a batch cannot be taken in parts: leave the rollout's `chunk` out"
        )
    total: Tensor | float = 0.0
    count: Tensor | float = 0.0
    for index, part in enumerate(made.parts):
        score = partial(_means, losses, part, teacher)
        values, seen = checkpoint(score, use_reentrant=False) if torch.is_grad_enabled() else score()
        weight = seen if made.weights is None else torch.full_like(seen, made.weights[index])
        total, count = total + values * weight, count + weight
    assert isinstance(total, Tensor) and isinstance(count, Tensor)
    return list((total / (count.clamp(min=1) if made.weights is None else count)).unbind())


def _means(losses: Sequence[Loss], part: Callable[[], Student], teacher: Teacher) -> tuple[Tensor, Tensor]:
    """Each loss of a part, and how many its predictions are."""
    student = part()
    values = torch.stack([loss(student, teacher).float() for loss in losses])
    return values, student.mask.sum().to(values.dtype)


def students(made: Student | Chunks) -> Iterator[tuple[Student, float]]:
    """The student, or its parts one by one, each with its share where the parts predict the same."""
    if isinstance(made, Student):
        yield made, 1.0
    else:
        for index, part in enumerate(made.parts):
            yield part(), 1.0 if made.weights is None else made.weights[index] / sum(made.weights)
