"""The second stage: the router alone learns, from group masses, on the drafter's own rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import coral_reference as reference
import coral_texts as texts
import pytest
import torch

from specframe import CompositionError
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import Groups, TeacherForced
from specframe_coral.groups import group_masses
from specframe_coral.routing import RoutingLoss, RoutingRollout
from specframe_eagle.drafter import Eagle
from specframe_falcon.drafter import Falcon
from specframe_parallelspec.drafter import ParallelSpec


def test_the_loss_is_equation_9() -> None:
    drafter, _ = texts.routed(groups=4)
    teacher = texts.teach(2, 8)
    student = RoutingRollout(rollout=MultiStep(steps=2, noise=0.0))(drafter, teacher, 0.0)
    assert student.logits.shape[-1] == 4
    total, groups = 0.0, reference.divide(texts.VOCAB, 4)
    for b, m in student.mask.nonzero().tolist():
        target = reference.softmax(teacher.logits[b, student.position[b, m]].tolist())
        choice = reference.router_law(drafter.module, student.features[b, m].tolist())
        total -= sum(sum(target[x] for x in groups[n]) * math.log(choice[n]) for n in range(4))
    assert RoutingLoss()(student, teacher).item() == pytest.approx(total / int(student.mask.sum()), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "rollout"),
    [
        (Eagle, MultiStep(steps=3)),
        (partial(Eagle, partial_alignment=True), MultiStep(steps=2)),
        (Falcon, TeacherForced()),
        (ParallelSpec, Groups()),
    ],
)
def test_the_router_learns_and_the_drafter_stays(kind: Callable[..., object], rollout: object) -> None:
    drafter, head = texts.routed(kind, dtype=torch.float32, groups=4, active=1)
    teacher = texts.teach(8, 24, dtype=torch.float32)
    fixed = {name: weight.clone() for name, weight in drafter.network.state_dict().items()}
    optimizer = torch.optim.AdamW(drafter.module.parameters(), lr=3e-2)
    unroll = RoutingRollout(rollout=rollout)
    losses = []
    for _ in range(90):
        drafter.module.train()
        torch.manual_seed(0)
        student = unroll(drafter, teacher, 0.0)
        loss = RoutingLoss()(student, teacher)
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad is not None for weight in head.module.parameters())
        optimizer.step()
        losses.append(loss.item())
    rows = torch.arange(8)[:, None]
    masses = group_masses(teacher.logits.softmax(-1)[rows, student.position], 4)[student.mask]
    uninformed = -(masses.mean(0) * masses.mean(0).log()).sum().item()
    assert losses[-1] < min(losses[0] / 2, 1.03 * uninformed), "a random drafter's features carry little more"
    assert all(torch.equal(fixed[name], weight) for name, weight in drafter.network.state_dict().items())
    assert all(weight.grad is None for weight in drafter.network.parameters())


def test_the_drafter_is_left_as_it_was() -> None:
    drafter, head = texts.routed(groups=4)
    RoutingRollout(rollout=TeacherForced())(drafter, texts.teach(1, 6), 0.0)
    with torch.no_grad():
        states = torch.randn(2, 8, dtype=torch.float64)
        assert torch.equal(drafter.logits(states), head(states))


def test_without_a_router_there_is_nothing_to_train() -> None:
    drafter = Eagle()
    drafter.bind(texts.target())
    with pytest.raises(CompositionError, match="use: router"):
        RoutingRollout(rollout=TeacherForced())(drafter, texts.teach(1, 6), 0.0)
