"""Positions that count: the teacher at the student's positions, means over them, losses computed in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specframe.components.losses.pieces import Pointwise, scored_in_pieces
from specframe.kernel.errors import CompositionError
from specframe.kernel.lazy import LazyStudent, LazyTeacher
from specframe.kernel.training import Loss
from specframe.kernel.types import Chunks, Student, Teacher


def at(teacher: Tensor, position: Tensor) -> Tensor:
    """The teacher's values where the student's predictions stand: [B, L, ...], [B, M] -> [B, M, ...]."""
    rows = torch.arange(len(position), device=position.device)[:, None]
    return teacher[rows, position]


def log_target(student: Student, teacher: Teacher) -> Tensor:
    """The target's log-probabilities of the student's columns, where the predictions stand: [B, M, v]."""
    return at(columns(teacher.log_law, student, teacher), student.position)


def columns(values: Tensor, student: Student, teacher: Teacher) -> Tensor:
    """The student's columns of what the teacher has per token, [..., V] -> [..., v].

    Raises CompositionError for a teacher that has other tokens than the student.
    """
    if teacher.support is None:
        return values if student.support is None else values[..., student.support]
    if student.support is None or not torch.equal(teacher.support, student.support):
        raise CompositionError("the teacher's support is not the drafter's: make the teacher for this drafter")
    return values


def place(tokens: Tensor, support: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The columns [...] that these tokens [...] have in a support, and whether they have one; None: all do.

    A token outside gets the column of another one.
    """
    if support is None:
        return tokens, None
    order = support.argsort()
    index = torch.searchsorted(support, tokens, sorter=order).clamp(max=len(support) - 1)
    column = order[index]
    return column, support[column] == tokens


def require_texts(teacher: Teacher, reader: str) -> None:
    """Raises CompositionError for a teacher of drafts, in the name of what reads on along a text."""
    if teacher.drafts is not None:
        raise CompositionError(
            f"{reader} reads on along a text, and this rollout's positions are in drafts: use a loss over the target's "
            "distribution, such as distillation"
        )


def mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of values [B, M] over mask [B, M], a scalar; 0 when nothing is masked in."""
    return torch.where(mask, values, 0).sum() / mask.sum().clamp(min=1)


def both(mask: Tensor, inside: Tensor | None) -> Tensor:
    """What is in the mask and, where that is a question, inside the support."""
    return mask if inside is None else mask & inside


def scored(losses: Sequence[Loss], made: Student | Chunks, teacher: Teacher) -> list[Tensor]:
    """Each loss as a scalar, in float32 or better; of parts, the mean by their masked predictions or their weights.

    A part's logits are forgotten once it is scored, and made again for its gradients: the price is the LM head's
    forward pass a second time. Raises CompositionError for a loss that compares rows, which parts would change.
    """
    if isinstance(made, Student):
        return _whole(losses, made, teacher)
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


def _whole(losses: Sequence[Loss], student: Student, teacher: Teacher) -> list[Tensor]:
    """Each loss of a student: those that are means over single predictions in pieces, where its logits are not made."""
    pointwise = [loss for loss in losses if isinstance(loss, Pointwise)]
    if not pointwise or not isinstance(student, LazyStudent) or not isinstance(teacher, LazyTeacher):
        return [loss(student, teacher).float() for loss in losses]
    if student.unread is None:
        return [loss(student, teacher).float() for loss in losses]
    means = iter(scored_in_pieces(pointwise, student, teacher).float().unbind())
    return [next(means) if isinstance(loss, Pointwise) else loss(student, teacher).float() for loss in losses]


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
