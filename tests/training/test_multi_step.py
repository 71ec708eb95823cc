"""HASS's rollout: every step sees what its level in a draft sees, restated literally in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from specframe.components.rollouts.multi_step import MultiStep, visible
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import Teacher
from specframe.neural import DecoderLayer
from specframe_falcon.drafter import Falcon


class LayerNet(nn.Module):
    """A linear map and a decoder layer."""

    def __init__(self, config) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = DecoderLayer(config)

    def forward(self, pairs: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(pairs.shape[1]).expand(pairs.shape[:2])
        return self.layer(self.fc(pairs), positions, mask)


@pytest.fixture
def attending(make_drafter):
    """Makes the drafter of a target that attends."""
    return lambda target: make_drafter(target, block=1, net=LayerNet)


def texts(target, batch=3, length=11) -> Teacher:
    tokens = torch.randint(1, 40, (batch, length))
    mask = torch.rand(batch, length) < 0.8
    return target.teach(tokens, mask)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_who_sees_whom(steps):
    for length in range(1, 9):
        mask = visible(length, steps)
        for query in range(steps * length):
            j, i = query // length + 1, query % length
            for key in range(steps * length):
                s, m = key // length + 1, key % length
                wanted = m <= i - j + 1 if s == 1 else s <= j and m == i - j + s
                assert mask[query, key] == wanted, (length, (j, i), (s, m))
        assert mask.diagonal().all(), "a row that sees nothing, not even itself, is not a number"


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_step_is_its_literal_restatement(make_target, steps, attending):
    target = make_target(dtype=torch.float64)
    drafter, teacher = attending(target), texts(target)
    student = MultiStep(steps=steps, noise=0.0)(drafter, teacher, 0.0)
    n = teacher.tokens.shape[1] - 1
    truth, tokens = teacher.features["last"], teacher.tokens
    assert student.features.shape == (3, steps * n, 16)
    assert torch.equal(drafter.logits(student.features), student.logits)
    for j in range(1, steps + 1):
        for i in range(n):
            entry = (j - 1) * n + i
            assert (student.position[:, entry] == i + 1).all() and student.level[entry] == j
            root = i - j + 1  # the last pair whose feature is true
            counts = teacher.mask[:, i + 1] if root >= 0 else torch.zeros(3, dtype=torch.bool)
            assert torch.equal(student.mask[:, entry], counts)
            if root < 0:
                continue
            known = truth[:, : root + 1]
            for size in range(root + 1, i + 2):  # one forward over a plain text per level
                predicted = drafter.predict(known, tokens[:, 1 : size + 1])[:, -1]
                known = torch.cat([known, predicted[:, None]], 1)
            torch.testing.assert_close(student.features[:, entry], predicted, rtol=1e-6, atol=1e-6)


def test_one_step_is_teacher_forcing(target, attending):
    drafter, teacher = attending(target), texts(target)
    one, plain = MultiStep(steps=1, noise=0.0)(drafter, teacher, 0.0), TeacherForced(noise=0.0)(drafter, teacher, 0.0)
    for name in ("logits", "position", "mask", "level", "features"):
        assert torch.equal(getattr(one, name), getattr(plain, name)), name


def test_nothing_flows_back_through_predicted_features_and_all_steps_are_scored(target, attending):
    drafter, teacher = attending(target), texts(target)
    student = MultiStep(steps=3)(drafter, teacher, 0.0)
    assert [features.shape[1] for features, _ in drafter.inputs] == [10, 20, 30]
    assert not any(features.requires_grad for features, _ in drafter.inputs)
    for step in (1, 2, 3):
        grads = torch.autograd.grad(
            student.logits[:, student.level == step].sum(), list(drafter.module.parameters()), retain_graph=True
        )
        assert any(grad.abs().sum() > 0 for grad in grads)


def test_noise_is_on_the_true_features_and_scaled_by_length(target, attending):
    teacher = texts(target, batch=16, length=33)
    truth = teacher.features["last"][:, :-1]
    for rollout, width in [(MultiStep(noise=0.2), 0.2), (MultiStep(noise=0.2, noise_length=66), 0.4)]:
        drafter = attending(target)
        rollout(drafter, teacher, 0.0)
        first, last = drafter.inputs[0][0], drafter.inputs[-1][0][:, :32]
        gap = last - truth
        assert gap.abs().max() <= width + 1e-5
        assert gap.std() == pytest.approx(width / math.sqrt(3), rel=0.05)
        assert torch.equal(last, first), "all steps start from the same noise"


def test_rows_do_not_leak_into_each_other(target, attending):
    drafter, teacher = attending(target), texts(target)
    whole = MultiStep(noise=0.0)(drafter, teacher, 0.0)
    tokens = teacher.tokens.clone()
    tokens[1:] = torch.randint(1, 40, tokens[1:].shape)
    other = MultiStep(noise=0.0)(drafter, target.teach(tokens, teacher.mask), 0.0)
    torch.testing.assert_close(whole.logits[0], other.logits[0], rtol=0, atol=1e-5)
    assert not torch.allclose(whole.logits[1], other.logits[1])


def test_what_does_not_fit_is_refused(target, make_drafter, teacher):
    with pytest.raises(CompositionError, match="multi-step"):
        MultiStep()(object(), teacher, 0.0)
    with pytest.raises(CompositionError, match="glancing"):
        MultiStep()(make_drafter(target, block=2), teacher, 0.0)
    with pytest.raises(InputError, match="steps"):
        MultiStep(steps=0)
    with pytest.raises(InputError, match="noise_length"):
        MultiStep(noise_length=0)
    recurrent = Falcon(block=1)
    recurrent.bind(target)
    with pytest.raises(CompositionError, match="LSTM"):
        MultiStep()(recurrent, teacher, 0.0)
