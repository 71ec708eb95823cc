"""Losses of a drafter that proposes from part of the vocabulary: literal sums, gradients, what lies outside."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import Distillation, TopKDistillation
from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Draw, Student, Teacher
from specframe_models.specdecpp.loss import AcceptanceLoss

VOCAB, SUPPORT = 9, [1, 2, 5, 8]
LOSSES = {
    "law": CrossEntropy(),
    "text": CrossEntropy(labels="text"),
    "decay": CrossEntropy(decay=0.8),
    "distillation": Distillation(alpha=0.7),
    "top_k": TopKDistillation(k=2),
}


def example(seed: int = 0) -> tuple[Student, Teacher]:
    chance = torch.Generator().manual_seed(seed)
    teacher = Teacher(
        tokens=torch.randint(VOCAB, (2, 6), generator=chance),
        mask=torch.ones(2, 6, dtype=torch.bool),
        features={},
        logits=2 * torch.randn(2, 6, VOCAB, generator=chance, dtype=torch.float64),
    )
    student = Student(
        logits=2 * torch.randn(2, 5, len(SUPPORT), generator=chance, dtype=torch.float64),
        position=torch.randint(6, (2, 5), generator=chance),
        mask=torch.rand(2, 5, generator=chance) < 0.8,
        level=torch.tensor([1, 2, 1, 2, 3]),
        support=torch.tensor(SUPPORT),
    )
    return student, teacher


def part(teacher: Teacher) -> Teacher:
    """The same teacher as a cache gives it to such a drafter."""
    return replace(
        teacher,
        logits=teacher.logits[..., SUPPORT],
        support=torch.tensor(SUPPORT),
        normaliser=teacher.logits.logsumexp(-1),
        best=teacher.logits.argmax(-1),
    )


def literal(name: str, student: Student, teacher: Teacher) -> float:
    total = count = 0.0
    for row, m in student.mask.nonzero().tolist():
        at = int(student.position[row, m])
        whole = teacher.logits[row, at].softmax(-1).tolist()
        p = [whole[token] for token in SUPPORT]
        surprise = [-x for x in student.logits[row, m].log_softmax(-1).tolist()]
        if name == "text":
            if at == 5 or int(teacher.tokens[row, at + 1]) not in SUPPORT:
                continue
            value = surprise[SUPPORT.index(int(teacher.tokens[row, at + 1]))]
        elif name == "distillation":
            mass, best = sum(p), whole.index(max(whole))
            soft = mass * sum(x / mass * (math.log(x / mass) + y) for x, y in zip(p, surprise, strict=True))
            value = 0.7 * soft + (0.3 * surprise[SUPPORT.index(best)] if best in SUPPORT else 0.0)
        elif name == "top_k":
            value = sum(p[i] * surprise[i] for i in sorted(range(4), key=p.__getitem__)[-2:])
        else:
            value = sum(x * y for x, y in zip(p, surprise, strict=True))
            value *= 0.8 ** (int(student.level[m]) - 1) if name == "decay" else 1.0
        total, count = total + value, count + 1
    return total / max(1, count)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_is_its_sum_over_the_support_and_the_mass_outside_is_lost(name, seed):
    student, teacher = example(seed)
    assert LOSSES[name](student, teacher).item() == pytest.approx(literal(name, student, teacher), abs=1e-12)
    assert LOSSES[name](student, part(teacher)).item() == pytest.approx(literal(name, student, teacher), abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_over_a_support_agree_with_finite_differences(name):
    student, teacher = example()
    assert torch.autograd.gradcheck(
        lambda logits: LOSSES[name](replace(student, logits=logits), part(teacher)), student.logits.requires_grad_()
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_target_that_is_sure_of_tokens_outside_gives_finite_losses_and_no_gradient(name):
    student, teacher = example()
    outside = torch.full((VOCAB,), -2000.0, dtype=torch.float64)
    outside[3] = 0.0
    sure = replace(teacher, logits=outside.expand(2, 6, VOCAB), tokens=torch.full((2, 6), 3))
    for taught in (sure, part(sure)):
        logits = student.logits.detach().clone().requires_grad_()
        loss = LOSSES[name](replace(student, logits=logits), taught)
        loss.backward()
        assert loss.item() == 0 and not logits.grad.any()


def test_the_minimum_is_the_law_given_the_support():
    student, teacher = example()
    laws = teacher.logits[torch.arange(2)[:, None], student.position][..., SUPPORT]
    for loss in (CrossEntropy(), Distillation(alpha=1.0)):
        logits = laws.clone().requires_grad_()
        loss(replace(student, logits=logits), teacher).backward()
        assert logits.grad.abs().max() < 1e-15


def test_acceptance_is_judged_by_tokens_not_by_columns():
    student, teacher = example()
    confidence = torch.full((2, 5), 0.5, dtype=torch.float64)
    student = replace(student, confidence=confidence, mask=torch.ones_like(student.mask))
    chosen = student.support[student.logits.argmax(-1)]
    wanted = teacher.logits[torch.arange(2)[:, None], student.position]
    for taught in (teacher, part(teacher)):
        assert torch.equal(AcceptanceLoss().accepted(student, taught), (chosen == wanted.argmax(-1)).double())
        p = wanted.softmax(-1).gather(-1, chosen[..., None])[..., 0]
        assert torch.allclose(AcceptanceLoss(temperature=1.0).accepted(student, taught), p)
        q = torch.zeros_like(wanted)
        q[..., SUPPORT] = student.logits.softmax(-1)
        overlap = torch.minimum(wanted.softmax(-1), q).sum(-1)
        loss = AcceptanceLoss(temperature=1.0, draw=Draw.IID)
        assert torch.allclose(loss.accepted(student, taught), overlap)
    q[..., SUPPORT] = (student.logits / 0.5).softmax(-1)
    overlap = torch.minimum((wanted / 0.5).softmax(-1), q).sum(-1)
    assert torch.allclose(AcceptanceLoss(temperature=0.5, draw=Draw.IID).accepted(student, teacher), overlap)
    with pytest.raises(CompositionError, match="temperature 1"):
        AcceptanceLoss(temperature=0.5, draw=Draw.IID).accepted(student, part(teacher))


def test_a_teacher_of_other_tokens_is_refused():
    student, teacher = example()
    for other in (None, torch.tensor([0, 1, 2, 3])):
        with pytest.raises(CompositionError, match="support"):
            CrossEntropy()(replace(student, support=other), part(teacher))
