"""CSRA against its formula, number by number, and its gradients."""

from __future__ import annotations

import coral_reference as reference
import coral_texts as texts
import pytest
import torch

from specframe import CompositionError, InputError
from specframe.components.rollouts.multi_step import MultiStep
from specframe.plugin import Student, Teacher
from specframe_coral.csra import CSRA
from specframe_eagle.drafter import Eagle


def rollout(steps: int, batch: int = 2, length: int = 7) -> tuple:
    """The predictions of an untrained drafter in `steps` steps, and its teacher."""
    drafter, teacher = Eagle(), texts.teach(batch, length)
    drafter.bind(texts.target())
    return MultiStep(steps=steps)(drafter, teacher, 0.0), teacher, drafter


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_it_is_its_formula(steps: int, temperature: float) -> None:
    torch.manual_seed(0)
    student, teacher, _ = rollout(steps)
    wanted = reference.csra(student, teacher, temperature)
    assert CSRA(temperature=temperature)(student, teacher).item() == pytest.approx(wanted, rel=1e-9)


def test_its_default_temperature_is_the_papers() -> None:
    student, teacher, _ = rollout(2)
    assert CSRA()(student, teacher).item() == pytest.approx(reference.csra(student, teacher, 0.07), rel=1e-9)


def test_negatives_come_from_the_whole_batch() -> None:
    student, teacher, _ = rollout(2)
    alone = [
        CSRA()(
            Student(student.logits[b], student.position[b], student.mask[b], student.level, student.features[b]),
            Teacher(teacher.tokens[b], teacher.mask[b], {"last": teacher.features["last"][b]}, teacher.logits[b]),
        )
        for b in ([0], [1])
    ]
    apart = sum(loss * student.mask[b].sum() for b, loss in enumerate(alone)) / student.mask.sum()
    assert CSRA()(student, teacher) > apart + 1e-3


def test_gradients_reach_the_drafter_through_every_step() -> None:
    student, teacher, drafter = rollout(3)
    student.features.retain_grad()
    CSRA()(student, teacher).backward()
    moved = (student.features.grad.abs().sum(-1) > 0) == student.mask
    assert moved.all()
    assert all(weight.grad.abs().sum() > 0 for weight in drafter.module.parameters())
    along = (student.features.grad * student.features).sum(-1)
    assert along.abs().max() < 1e-9, "angles alone are compared"


def test_steps_that_agree_cost_less_than_steps_that_do_not() -> None:
    student, teacher, _ = rollout(3)
    truth = teacher.features["last"][torch.arange(2)[:, None], student.position]

    def loss(features: torch.Tensor) -> float:
        return CSRA()(Student(student.logits, student.position, student.mask, student.level, features), teacher).item()

    noise = torch.randn(truth.shape, dtype=truth.dtype, generator=torch.Generator().manual_seed(0))
    assert loss(truth) < loss(truth + noise) < loss(truth.flip(1))


def test_half_precision_is_compared_in_float32_even_under_autocast() -> None:
    student, teacher, _ = rollout(2)
    half_teacher = Teacher(teacher.tokens, teacher.mask, {"last": teacher.features["last"].bfloat16()}, teacher.logits)
    half = Student(student.logits, student.position, student.mask, student.level, student.features.bfloat16())
    wide = Student(student.logits, student.position, student.mask, student.level, half.features.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = CSRA()(half, half_teacher)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(CSRA()(wide, half_teacher).item(), rel=1e-5)


def test_refusals() -> None:
    student, teacher, _ = rollout(1)
    with pytest.raises(InputError, match="temperature"):
        CSRA(temperature=0.0)
    with pytest.raises(CompositionError, match="predicts features"):
        CSRA()(Student(student.logits, student.position, student.mask, student.level), teacher)
