"""Losses over a few predictions at a time: those that count alone, each piece's logits made, scored and forgotten.

Logits over a vocabulary are the largest tensors of a training step, and most losses are means over single predictions.
So the frozen LM heads of drafter and target read only the predictions that count, a piece at a time, and the gradient
with respect to what the drafter's head read is taken at once: no logits are kept for the backward pass, and none are
made twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from specframe.kernel.lazy import LazyStudent, LazyTeacher

if TYPE_CHECKING:
    from specframe.kernel.types import Student, Teacher

PLACES = 256
"""Positions of a piece: their logits stay in a processor's cache, and the heads' products are large enough."""


@runtime_checkable
class Pointwise(Protocol):
    """A loss that is a mean over predictions, and has the value of each: what `d_pace` weighs."""

    def values(self, student: Student, teacher: Teacher) -> tuple[Tensor, Tensor]:
        """The value of each prediction, [B, M], and which of them count, [B, M] bool."""
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
    """A student's predictions that count, in the order of the positions that they imitate."""

    student: LazyStudent
    teacher: LazyTeacher
    chosen: Tensor  # [N] int64, numbers of predictions in [B M]
    place: Tensor  # [N] int64, ascending: numbers of positions in the teacher's [B L]

    @classmethod
    def of(cls, student: LazyStudent, teacher: LazyTeacher) -> Pieces:
        """The predictions in the student's mask."""
        chosen = student.mask.flatten().nonzero().squeeze(1)
        row = chosen // student.mask.shape[1]
        place = row * teacher.tokens.shape[1] + student.position.flatten()[chosen]
        place, order = place.sort(stable=True)
        return cls(student, teacher, chosen[order], place)

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Pieces: which of the predictions, their numbers, the positions, and which of these each imitates."""
        places, index, counts = torch.unique_consecutive(self.place, return_inverse=True, return_counts=True)
        start = 0
        for first, (part, many) in enumerate(zip(places.split(PLACES), counts.split(PLACES), strict=True)):
            end = start + int(many.sum())
            yield slice(start, end), self.chosen[start:end], part, index[start:end] - first * PLACES
            start = end


class _Means(torch.autograd.Function):
    """Each loss's mean, with the gradients taken in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, pieces: Pieces, losses: Sequence[Pointwise]) -> Tensor:
        """The means of losses, given what the head reads of the chosen predictions, [N, H]."""
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
