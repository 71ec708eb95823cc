"""The losses against literal float64 restatements, finite differences, masks and batch leakage."""

from __future__ import annotations

import math

import pytest
import torch

from specframe.components.heads import FullHead
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import Distillation
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import Student, Teacher

LOSSES = [
    FeatureRegression(),
    FeatureRegression(distance="mse"),
    Distillation(),
    Distillation(alpha=0.25),
    CrossEntropy(),
]


def example(batch=2, length=7, count=4, vocab=5, size=3, dtype=torch.float64) -> tuple[Student, Teacher]:
    teacher = Teacher(
        tokens=torch.randint(vocab, (batch, length)),
        mask=torch.ones(batch, length, dtype=torch.bool),
        features={"last": 2 * torch.randn(batch, length, size, dtype=dtype)},
        logits=2 * torch.randn(batch, length, vocab, dtype=dtype),
    )
    student = Student(
        logits=2 * torch.randn(batch, count, vocab, dtype=dtype),
        position=torch.randint(length, (batch, count)),
        mask=torch.rand(batch, count) < 0.6,
        level=torch.arange(count) % 2 + 1,
        features=2 * torch.randn(batch, count, size, dtype=dtype),
    )
    student.mask[0, 0] = True
    return student, teacher


def softmax(row: list[float]) -> list[float]:
    exps = [math.exp(x) for x in row]
    return [x / sum(exps) for x in exps]


def literal(loss, student: Student, teacher: Teacher) -> float:
    total, count = 0.0, 0
    for b in range(len(student.mask)):
        for m in range(student.mask.shape[1]):
            if not student.mask[b, m]:
                continue
            at = int(student.position[b, m])
            p = softmax(teacher.logits[b, at].tolist())
            q = softmax(student.logits[b, m].tolist())
            cross = -sum(x * math.log(y) for x, y in zip(p, q, strict=True))
            entropy = -sum(x * math.log(x) for x in p)
            if isinstance(loss, FeatureRegression):
                gaps = (student.features[b, m] - teacher.features["last"][b, at]).abs().tolist()
                squared = loss.distance == "mse"
                value = sum(g * g if squared else 0.5 * g * g if g < 1 else g - 0.5 for g in gaps) / len(gaps)
            elif isinstance(loss, Distillation):
                value = loss.alpha * (cross - entropy) + (1 - loss.alpha) * -math.log(q[p.index(max(p))])
            else:
                value = cross
            total, count = total + value, count + 1
    return total / count


@pytest.mark.parametrize("loss", LOSSES, ids=lambda x: type(x).__name__)
def test_a_loss_is_its_formula(loss):
    for _ in range(5):
        student, teacher = example()
        assert loss(student, teacher).item() == pytest.approx(literal(loss, student, teacher), abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda x: type(x).__name__)
def test_gradients_agree_with_finite_differences(loss):
    student, teacher = example(batch=2, count=3, vocab=4)

    def value(logits, features):
        return loss(Student(logits, student.position, student.mask, student.level, features), teacher)

    inputs = (student.logits.clone().requires_grad_(), student.features.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda *x: value(*x) + 0 * (x[0].sum() + x[1].sum()), inputs)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda x: type(x).__name__)
def test_what_is_masked_out_changes_nothing(loss):
    student, teacher = example()
    before = loss(student, teacher)
    student.logits[~student.mask] = 1e4
    student.features[~student.mask] = -1e4
    assert torch.equal(loss(student, teacher), before)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda x: type(x).__name__)
def test_a_batch_is_the_mean_of_its_rows(loss):
    student, teacher = example()
    parts = []
    for b in range(2):
        row = slice(b, b + 1)
        s = Student(
            student.logits[row],
            student.position[row],
            student.mask[row],
            student.level,
            student.features[row],
        )
        t = Teacher(
            teacher.tokens[row],
            teacher.mask[row],
            {"last": teacher.features["last"][row]},
            teacher.logits[row],
        )
        parts.append(loss(s, t) * s.mask.sum())
    assert loss(student, teacher).item() == pytest.approx((sum(parts) / student.mask.sum()).item(), abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda x: type(x).__name__)
def test_nothing_to_score_is_zero_and_half_precision_is_finite(loss):
    student, teacher = example(dtype=torch.bfloat16)
    assert loss(student, teacher).isfinite()
    nothing = Student(student.logits, student.position, student.mask & False, student.level, student.features)
    assert loss(nothing, teacher) == 0


def test_perfect_predictions_cost_nothing():
    student, teacher = example()
    rows = torch.arange(2)[:, None]
    perfect = Student(
        teacher.logits[rows, student.position],
        student.position,
        student.mask,
        student.level,
        teacher.features["last"][rows, student.position],
    )
    assert FeatureRegression()(perfect, teacher) == 0
    assert abs(Distillation(alpha=1.0)(perfect, teacher)) < 1e-15


def test_regression_without_features_and_a_bad_alpha_are_refused():
    student, teacher = example()
    bare = Student(student.logits, student.position, student.mask, student.level)
    with pytest.raises(CompositionError, match="predicts features"):
        FeatureRegression()(bare, teacher)
    with pytest.raises(InputError, match="alpha"):
        Distillation(alpha=1.5)


def test_the_full_head_is_the_target_s(target):
    head = FullHead()
    with pytest.raises(CompositionError, match="before bind"):
        head(torch.zeros(1, 16))
    head.bind(target)
    x = torch.randn(2, 3, 16, requires_grad=True)
    assert torch.equal(head(x), target.head(x))
    head(x).sum().backward()
    assert x.grad is not None
    with pytest.raises(CompositionError, match="LM head"):
        FullHead().bind(object())
