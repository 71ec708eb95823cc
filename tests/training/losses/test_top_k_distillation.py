"""HASS's loss against its formula, and the conformance check."""

from __future__ import annotations

import math

import pytest
import torch

from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import TopKDistillation
from specframe.kernel.errors import InputError
from specframe.testing import check_loss
from specframe.testing.losses import example


def softmax(row: list[float]) -> list[float]:
    exps = [math.exp(x) for x in row]
    return [x / sum(exps) for x in exps]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_is_its_formula(k):
    teacher, student = example()
    total, count = 0.0, 0
    for b, m in student.mask.nonzero().tolist():
        p = softmax(teacher.logits[b, student.position[b, m]].tolist())
        q = softmax(student.logits[b, m].tolist())
        best = sorted(range(len(p)), key=lambda x: -p[x])[:k]
        total, count = total - sum(p[x] * math.log(q[x]) for x in best), count + 1
    assert TopKDistillation(k=k)(student, teacher).item() == pytest.approx(total / count, abs=1e-12)


def test_over_the_whole_vocabulary_it_is_cross_entropy():
    teacher, student = example()
    for k in (teacher.logits.shape[-1], 100):
        torch.testing.assert_close(TopKDistillation(k=k)(student, teacher), CrossEntropy()(student, teacher))


def test_it_keeps_the_contract_of_losses():
    check_loss(lambda: TopKDistillation(k=2))


def test_no_tokens_at_all_are_refused():
    with pytest.raises(InputError, match="k must be"):
        TopKDistillation(k=0)
