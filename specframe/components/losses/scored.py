"""What every loss needs: the teacher at the student's positions, and the mean over what counts.

A student with a support can only predict its tokens, so a loss compares the laws there. The teacher's law keeps its
probabilities: they are not renormalised over the support, and the mass of all other tokens is lost. A prediction thus
counts as much as the target stays inside the support, and its minimum is the target's law given the support. That is a
renormalised law weighted by its mass; renormalised alone, positions where the target leaves the support would ask for
whatever is left of its law as loudly as the others. A single label outside the support is not scored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Student, Teacher


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
