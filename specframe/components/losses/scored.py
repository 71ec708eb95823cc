"""Masked losses: the teacher's values at the student's positions, means over them, and chunked computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specframe.kernel.errors import CompositionError
from specframe.kernel.predictions import LazyStudent, LazyTeacher
from specframe.kernel.training import Loss
from specframe.kernel.types import Chunks, Student, Teacher

PLACES, PLACES_ON_DEVICE = 256, 8192
"""Positions per chunk on a CPU, whose cache should hold their logits, and on other devices."""


def gather_positions(teacher: Tensor, position: Tensor) -> Tensor:
    """The teacher's values at the positions of the student's predictions: [B, L, ...], [B, M] -> [B, M, ...]."""
    rows = torch.arange(len(position), device=position.device)[:, None]
    return teacher[rows, position]


def log_target(student: Student, teacher: Teacher) -> Tensor:
    """The target's log-probabilities of the student's columns, at the predictions' positions: [B, M, v]."""
    return gather_positions(columns(teacher.log_law, student, teacher), student.position)


def columns(values: Tensor, student: Student, teacher: Teacher) -> Tensor:
    """The teacher's values per token for the student's columns, [..., V] -> [..., v].

    Raises CompositionError if teacher and student have different vocabularies.
    """
    if teacher.support is None:
        return values if student.support is None else values[..., student.support]
    if student.support is None or not torch.equal(teacher.support, student.support):
        raise CompositionError("the teacher's support is not the drafter's: make the teacher for this drafter")
    return values


def place(tokens: Tensor, support: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The columns [...] of these tokens [...] in a support, and a mask of tokens in it; None: all are.

    A token outside the support gets an arbitrary column.
    """
    if support is None:
        return tokens, None
    order = support.argsort()
    index = torch.searchsorted(support, tokens, sorter=order).clamp(max=len(support) - 1)
    column = order[index]
    return column, support[column] == tokens


def require_texts(teacher: Teacher, reader: str) -> None:
    """Raises CompositionError for a teacher of drafts; `reader` names the part that needs whole texts."""
    if teacher.drafts is not None:
        raise CompositionError(
            f"{reader} reads on along a text, and this rollout's positions are in drafts: use a loss over the target's "
            "distribution, such as distillation"
        )


def mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of values [B, M] over mask [B, M], a scalar; 0 for an empty mask."""
    return torch.where(mask, values, 0).sum() / mask.sum().clamp(min=1)


def both(mask: Tensor, inside: Tensor | None) -> Tensor:
    """Returns the mask, restricted to the support if there is one."""
    return mask if inside is None else mask & inside


def scored(losses: Sequence[Loss], made: Student | Chunks, teacher: Teacher) -> list[Tensor]:
    """Returns each loss as a scalar, in float32 or better; for parts, their mean weighted by masked counts or weights.

    A part's logits are freed once it is scored and recomputed for its gradients, at the cost of a second forward pass
    of the LM head. Raises CompositionError for a loss that compares rows, which splitting would change.
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
    """Each loss of a student; if its logits are lazy, losses that are means over predictions are computed in chunks."""
    pointwise = [loss for loss in losses if isinstance(loss, Pointwise)]
    if not pointwise or not isinstance(student, LazyStudent) or not isinstance(teacher, LazyTeacher):
        return [loss(student, teacher).float() for loss in losses]
    if student.unread is None:
        return [loss(student, teacher).float() for loss in losses]
    means = iter(scored_in_pieces(pointwise, student, teacher).float().unbind())
    return [next(means) if isinstance(loss, Pointwise) else loss(student, teacher).float() for loss in losses]


def _means(losses: Sequence[Loss], part: Callable[[], Student], teacher: Teacher) -> tuple[Tensor, Tensor]:
    """Returns each loss of a part, and the number of its predictions."""
    student = part()
    values = torch.stack([loss(student, teacher).float() for loss in losses])
    return values, student.mask.sum().to(values.dtype)


def students(made: Student | Chunks) -> Iterator[tuple[Student, float]]:
    """Yields the student, or its parts one by one, each with its weight if parts repeat predictions."""
    if isinstance(made, Student):
        yield made, 1.0
    else:
        for index, part in enumerate(made.parts):
            yield part(), 1.0 if made.weights is None else made.weights[index] / sum(made.weights)


@runtime_checkable
class Pointwise(Protocol):
    """A loss that is a mean over predictions; `d-pace` weights the values of single predictions."""

    def values(self, student: Student, teacher: Teacher) -> tuple[Tensor, Tensor]:
        """The value of each prediction, [B, M], and the mask of predictions to average, [B, M] bool."""
        ...


def scored_in_pieces(losses: Sequence[Pointwise], student: LazyStudent, teacher: LazyTeacher) -> Tensor:
    """The means of losses over the predictions that count: [len(losses)], in float32 or better.

    Gradients reach the student's `hidden`, and nothing else.
    """
    assert student.hidden is not None
    pieces = Pieces.of(student, teacher)
    hidden = student.hidden.flatten(0, 1)[pieces.chosen]  # [N, H]
    means: Tensor = _Means.apply(hidden, pieces, losses)
    return means


@dataclass(frozen=True)
class Pieces:
    """A student's unmasked predictions, sorted by the positions that they imitate."""

    student: LazyStudent
    teacher: LazyTeacher
    chosen: Tensor  # [N] int64, indices of predictions in [B M]
    place: Tensor  # [N] int64, ascending: indices of positions in the teacher's [B L]

    @classmethod
    def of(cls, student: LazyStudent, teacher: LazyTeacher) -> Pieces:
        """The predictions in the student's mask."""
        chosen = student.mask.flatten().nonzero().squeeze(1)
        row = chosen // student.mask.shape[1]
        place = row * teacher.tokens.shape[1] + student.position.flatten()[chosen]
        place, order = place.sort(stable=True)
        return cls(student, teacher, chosen[order], place)

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Yields chunks: a slice of the predictions, their indices, their positions, and indices into these."""
        places, index, counts = torch.unique_consecutive(self.place, return_inverse=True, return_counts=True)
        start, size = 0, PLACES if places.device.type == "cpu" else PLACES_ON_DEVICE
        for first, (part, many) in enumerate(zip(places.split(size), counts.split(size), strict=True)):
            end = start + int(many.sum())
            yield slice(start, end), self.chosen[start:end], part, index[start:end] - first * size
            start = end


class _Means(torch.autograd.Function):
    """Each loss's mean, with the gradients taken in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, pieces: Pieces, losses: Sequence[Pointwise]) -> Tensor:
        """The means of losses, given the LM head's inputs of the chosen predictions, [N, H]."""
        wanted = ctx.needs_input_grad[0]
        sums = torch.zeros(len(losses), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        counts = torch.zeros_like(sums)
        gradients = hidden.new_zeros(len(losses) if wanted else 0, *hidden.shape)
        for span, chosen, places, index in pieces:
            read = hidden[span].detach().requires_grad_(wanted)
            with torch.set_grad_enabled(wanted):
                student = pieces.student.part(chosen, index, read)
                teacher = pieces.teacher.part(places)
                for number, loss in enumerate(losses):
                    values, mask = loss.values(student, teacher)
                    total = torch.where(mask, values, 0).sum()
                    sums[number] += total.detach()
                    counts[number] += mask.sum()
                    if wanted and total.requires_grad:
                        more = number + 1 < len(losses)
                        (gradients[number, span],) = torch.autograd.grad(total, read, retain_graph=more)
        counts = counts.clamp(min=1)
        ctx.save_for_backward(gradients, counts)
        return sums / counts

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the means' weighted sum, [N, H]."""
        gradients, counts = ctx.saved_tensors
        weights = (upstream[0] / counts).to(gradients.dtype)
        return torch.einsum("l,lnh->nh", weights, gradients), None, None
