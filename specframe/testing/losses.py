"""The conformance check of losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.training import Loss
from specframe.kernel.types import Student, Teacher

BATCH, LENGTH, VOCAB, HIDDEN = 2, 6, 5, 4
STEP = 1e-6
CLOSE = 1e-5


def check_loss(make: Callable[[], Loss]) -> None:
    """Raises AssertionError unless the loss keeps its contract.

    A finite scalar; its gradient agrees with finite differences; masked predictions have no part in it; nothing leaks
    between the rows of a batch: the batch's loss is the mean of its rows', by their predictions. For a loss that
    compares rows on purpose, `rowwise = False`, only their order must not matter; for one that deliberately stops
    gradients through its weights, `detaches = True`, gradients must exist.
    """
    loss = make()
    teacher, student = example()
    value = loss(student, teacher)
    assert value.dim() == 0 and bool(value.isfinite()), "the loss must be a finite scalar"
    check_gradient(loss, teacher, student)
    check_mask(loss, teacher, student)
    if getattr(loss, "rowwise", True):
        check_batch(loss, teacher, student, value)
    else:
        check_order(loss, teacher, student, value)


def check_gradient(loss: Loss, teacher: Teacher, student: Student) -> None:
    """Automatic gradients against central differences, at the student's logits, features and confidence.

    A loss that `detaches` a part of its own value has no differences to compare with.
    """
    given = (student.logits, student.features, student.confidence)
    inputs = [part.clone().requires_grad_() for part in given if part is not None]
    value = loss(_with(student, inputs), teacher)
    assert value.requires_grad, "no gradient reaches the student"
    grads = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    assert any(bool(grad.any()) for grad in grads), "no gradient reaches the student"
    for which, (x, grad) in enumerate(zip(inputs, grads, strict=True)):
        if getattr(loss, "detaches", False):
            break
        for place in range(0, x.numel(), 7):
            moved = []
            for sign in (1, -1):
                other = [y.detach().clone() for y in inputs]
                other[which].view(-1)[place] += sign * STEP
                moved.append(loss(_with(student, other), teacher))
            slope = float((moved[0] - moved[1]) / (2 * STEP))
            found = float(grad.view(-1)[place])
            assert abs(slope - found) < CLOSE, f"gradient {found:.6g} where differences give {slope:.6g}"


def check_mask(loss: Loss, teacher: Teacher, student: Student) -> None:
    """Checks that masked-out predictions do not count, and that nothing masked in is 0, not nan."""
    before = loss(student, teacher)
    off = ~student.mask
    logits = torch.where(off[..., None], torch.full_like(student.logits, 3.0), student.logits)
    features, confidence = student.features, student.confidence
    if features is not None:
        features = torch.where(off[..., None], torch.full_like(features, 3.0), features)
    if confidence is not None:
        confidence = torch.where(off, torch.full_like(confidence, 0.9), confidence)
    after = loss(replace(student, logits=logits, features=features, confidence=confidence), teacher)
    assert bool((before - after).abs() < 1e-12), "masked predictions have a part in the loss"
    nothing = replace(student, mask=torch.zeros_like(student.mask))
    assert bool(loss(nothing, teacher).isfinite()), "the loss is not finite when nothing is masked in"


def check_batch(loss: Loss, teacher: Teacher, student: Student, value: Tensor) -> None:
    """The batch's loss is the mean over predictions, whatever row they are in."""
    weights = student.mask.sum(1).double()
    parts = [loss(*_rows(student, teacher, [row])) for row in range(BATCH)]
    mean = (torch.stack(parts) * weights).sum() / weights.sum()
    assert bool((mean - value).abs() < 1e-9), (
        f"the batch's loss {float(value):.6g} is not its rows' mean {float(mean):.6g}: rows leak into each other"
    )


def check_order(loss: Loss, teacher: Teacher, student: Student, value: Tensor) -> None:
    """The order of a batch's rows does not matter."""
    turned = loss(*_rows(student, teacher, list(reversed(range(BATCH)))))
    assert bool((turned - value).abs() < 1e-9), (
        f"the batch's loss {float(value):.6g} becomes {float(turned):.6g} when its rows change places"
    )


def example() -> tuple[Teacher, Student]:
    """A teacher and a student in float64, partly masked, rows of different weight."""
    generator = torch.Generator().manual_seed(5)

    def entries(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)
    seen = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    teacher = Teacher(tokens, seen, {"last": entries(BATCH, LENGTH, HIDDEN)}, entries(BATCH, LENGTH, VOCAB))
    position = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 5]])
    mask = torch.tensor([[True, True, False, True], [False, True, False, False]])
    student = Student(
        entries(BATCH, 4, VOCAB),
        position,
        mask,
        torch.tensor([1, 2, 1, 2]),
        features=entries(BATCH, 4, HIDDEN),
        confidence=entries(BATCH, 4).sigmoid(),
    )
    return teacher, student


def _rows(student: Student, teacher: Teacher, rows: list[int]) -> tuple[Student, Teacher]:
    """Returns these rows of the batch, in this order."""
    features = None if student.features is None else student.features[rows]
    confidence = None if student.confidence is None else student.confidence[rows]
    return (
        Student(student.logits[rows], student.position[rows], student.mask[rows], student.level, features, confidence),
        Teacher(
            teacher.tokens[rows],
            teacher.mask[rows],
            {tap: feature[rows] for tap, feature in teacher.features.items()},
            teacher.logits[rows],
        ),
    )


def _with(student: Student, inputs: list[Tensor]) -> Student:
    names = ("logits", "features", "confidence")
    given = [name for name in names if getattr(student, name) is not None]
    changed: dict[str, Any] = dict(zip(given, inputs, strict=True))
    return replace(student, **changed)
