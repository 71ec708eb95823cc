"""From texts to an adapter by `specframe train`: it alone learns, and the tau reported is the tau that decoding has."""

from __future__ import annotations

import kangaroo_fakes as fakes
import pytest
import torch

from specframe import CompositionError
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.scored import gather_positions
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.testing import check_training, fit, random_teacher
from specframe_falcon.glancing import Glancing


def test_simulated_tau_is_what_decoding_has() -> None:
    check_training("{use: kangaroo, exit: 1}", "[{use: cross-entropy, labels: text}]", levels=8)


def test_every_position_is_scored_against_the_target_s_law_there() -> None:
    drafter = fakes.bound()
    teacher = random_teacher(drafter.target, 2, 12)
    student = TeacherForced(noise=0.0)(drafter, teacher, 0.0)
    assert student.position.tolist() == [list(range(12))] * 2
    assert torch.equal(student.mask, teacher.mask) and bool((student.level == 1).all())
    law = gather_positions(teacher.logits, student.position).softmax(-1)
    wanted = -(law * student.logits.log_softmax(-1)).sum(-1)[teacher.mask].mean()
    torch.testing.assert_close(CrossEntropy()(student, teacher), wanted)


def test_the_adapter_alone_learns() -> None:
    drafter = fakes.bound()
    model = drafter.target.model
    frozen = {name: value.clone() for name, value in model.state_dict().items()}
    before = {name: value.clone() for name, value in drafter.module.state_dict().items()}
    lessons = [random_teacher(drafter.target, 4, 12, seed=seed) for seed in range(3)]
    losses = fit(drafter, lessons, TeacherForced(noise=0.0), [(CrossEntropy(), 1.0)], steps=30)
    assert losses[-1] < 0.9 * losses[0]
    for name, value in drafter.module.state_dict().items():
        assert not torch.equal(value, before[name]), name
    assert all(torch.equal(value, frozen[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("rollout", [MultiStep(), Glancing()])
def test_rollouts_that_feed_predictions_back_are_refused(rollout: MultiStep | Glancing) -> None:
    drafter = fakes.bound()
    with pytest.raises(CompositionError, match="feeds predicted features back"):
        rollout(drafter, random_teacher(drafter.target, 2, 12), 0.0)
