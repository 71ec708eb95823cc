"""Losses of the acceptance rate: by hand, by finite differences, and as the package speculators computes them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import Distillation
from specframe.components.losses.divergences import (
    JensenShannon,
    LKHybrid,
    NegativeLogAcceptance,
    ReverseKL,
    TotalVariation,
)
from specframe.components.losses.scored import scored
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import AllLevels, Groups, TeacherForced
from specframe.components.rollouts.text import AlongText, MaskedText
from specframe.components.targets.tiny import random_model
from specframe.plugin import Student, Teacher
from specframe.testing import check_loss, random_teacher, tiny_target
from specframe.testing.losses import example
from specframe_blocks.dflash.d_pace import DPace
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark
from specframe_blocks.dflash.rollout import AnchoredBlocks
from specframe_blocks.mtp.drafter import MTP
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.parallel.drafter import PEagle
from specframe_eagle.parallel.rollout import COD
from specframe_eagle.rollout import TrainingTimeTest
from specframe_medusa.medusa import Medusa
from specframe_parallelspec.drafter import ParallelSpec

P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]


def divergence(p: list[float], q: list[float]) -> float:
    """KL(p || q)."""
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


MIDDLE = [0.35, 0.3, 0.35]
BY_HAND = [
    (TotalVariation(), 0.3),
    (NegativeLogAcceptance(), -math.log(0.7)),
    (LKHybrid(), math.exp(-2.1) * divergence(P, Q) + (1 - math.exp(-2.1)) * 0.3),
    (LKHybrid(eta=0), divergence(P, Q)),
    (ReverseKL(), divergence(Q, P)),
    (JensenShannon(), (divergence(P, MIDDLE) + divergence(Q, MIDDLE)) / 2),
]


def one(p: list[float], q: list[float], support: Tensor | None = None) -> tuple[Student, Teacher]:
    """A student of one prediction and its teacher, by their distributions."""
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    logits = torch.tensor(p, dtype=torch.float64).log().expand(1, 2, -1)
    teacher = Teacher(tokens, torch.ones_like(tokens, dtype=torch.bool), {}, logits)
    guess = torch.tensor(q, dtype=torch.float64).log()[None, None]
    place = torch.ones(1, 1, dtype=torch.int64)
    return Student(guess, place, place.bool(), torch.tensor([1]), support=support), teacher


@pytest.mark.parametrize(("loss", "wanted"), BY_HAND)
def test_values_by_hand(loss: object, wanted: float) -> None:
    assert float(loss(*one(P, Q))) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("loss", [TotalVariation, NegativeLogAcceptance, LKHybrid, ReverseKL, JensenShannon])
def test_equal_distributions_are_at_the_minimum(loss: type) -> None:
    assert float(loss()(*one(P, P))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        TotalVariation,
        NegativeLogAcceptance,
        ReverseKL,
        JensenShannon,
        lambda: JensenShannon(beta=0.9),
        lambda: LKHybrid(eta=0),
        lambda: TotalVariation(decay=0.5),
        lambda: DPace(loss=TotalVariation(), alpha=1),
    ],
)
def test_the_contract_gradients_by_finite_differences_included(make: object) -> None:
    check_loss(make)


def gradient(loss: object) -> Tensor:
    teacher, student = example()
    logits = student.logits.clone().requires_grad_()
    loss(replace(student, logits=logits), teacher).backward()
    return logits.grad


def test_no_gradient_flows_through_the_weight_of_the_hybrid() -> None:
    teacher, student = example()
    kl, tv = LKHybrid(eta=0), TotalVariation()
    weight = (-3 * (1 - tv.values(student, teacher)[0])).exp()[..., None]
    torch.testing.assert_close(gradient(LKHybrid()), weight * gradient(kl) + (1 - weight) * gradient(tv))
    check_loss(LKHybrid)


@pytest.mark.parametrize("loss", [CrossEntropy(), TotalVariation(), JensenShannon()])
def test_d_pace_weighs_a_level_by_what_depends_on_it_without_gradients(loss: object) -> None:
    teacher, student = example()
    teacher = replace(teacher, mask=torch.ones_like(teacher.mask))
    pace = DPace(loss=loss, alpha=0.25)
    weights = pace.weights(student, teacher)
    q = student.log_law.exp()
    for row in range(2):
        for first in (0, 2):  # two drafts of two levels
            chances = []
            for place in (first, first + 1):
                best = teacher.logits[row, student.position[row, place]].argmax()
                chances.append(0.25 + 0.75 * q[row, place, best] if student.mask[row, place] else 1.0)
            second = chances[0] * chances[1] * student.mask[row, first + 1]
            expected = [chances[0] * student.mask[row, first] + second, second]
            torch.testing.assert_close(weights[row, first : first + 2].tolist(), [float(x) for x in expected])
    torch.testing.assert_close(gradient(pace), weights[..., None] * gradient(loss))
    check_loss(lambda: pace)


SUPPORT = torch.tensor([2, 0])


def test_what_lies_outside_a_support_is_lost() -> None:
    student, teacher = one(P, [0.4, 0.6], SUPPORT)  # of the tokens 2 and 0, whose p are .2 and .5
    assert float(TotalVariation()(student, teacher)) == pytest.approx(1 - 0.2 - 0.5)
    assert float(NegativeLogAcceptance()(student, teacher)) == pytest.approx(-math.log(0.7))
    given = [0.2 / 0.7, 0.5 / 0.7]
    assert float(ReverseKL()(student, teacher)) == pytest.approx(divergence([0.4, 0.6], given))
    q = [0.6, 1e-300, 0.4]
    middle = [(a + b) / 2 for a, b in zip(P, q, strict=True)]
    wanted = (divergence(P, middle) + divergence(q, middle)) / 2
    assert float(JensenShannon()(student, teacher)) == pytest.approx(wanted)


def drafting_model(masks: Masks | None = None) -> ModelDrafter:
    return ModelDrafter.from_model(random_model("llama", vocab=11, size=8, layers=1).double(), masks=masks)


ROLLOUTS = [
    (Eagle, TeacherForced(noise=0.0)),
    (Eagle, MultiStep(steps=3)),
    (lambda: Medusa(heads=3), AllLevels()),
    (lambda: ParallelSpec(masks=2), Groups()),
    (Eagle3, TrainingTimeTest(steps=3)),
    (MTP, TrainingTimeTest(steps=3)),
    (lambda: PEagle(levels=3), COD()),
    (lambda: DFlash(block_size=4, layers=1), AnchoredBlocks(anchors=5)),
    (lambda: DSpark(block_size=4, layers=1, rank=3), AnchoredBlocks(anchors=5, chunk=2)),
    (drafting_model, AlongText()),
    (lambda: drafting_model(Masks(2, 10)), MaskedText()),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("drafter", "rollout"), ROLLOUTS)
@pytest.mark.parametrize(
    "loss",
    [TotalVariation(), NegativeLogAcceptance(), LKHybrid(), ReverseKL(), JensenShannon(), DPace(loss=CrossEntropy())],
)
def test_they_train_drafters_of_every_rollout(loss: object, drafter: object, rollout: object) -> None:
    made, target = drafter(), tiny_target(vocab=11, layers=1)
    made.bind(target)
    teacher, values = random_teacher(target, 2, 10), []
    weights = list(made.module.parameters())
    for _ in range(2):
        torch.manual_seed(0)
        values += scored([loss], rollout(made, teacher, 0.0), teacher)
        slopes = torch.autograd.grad(values[-1], weights, allow_unused=True, materialize_grads=True)
        length = torch.cat([slope.flatten() for slope in slopes]).norm()
        assert 0 < length < torch.inf
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                weight -= 1e-4 * slope / length
    if not getattr(loss, "detaches", False):
        assert values[1] < values[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TotalVariation(decay=0), "decay must be above 0"),
        (lambda: LKHybrid(eta=-1), "eta must not be negative"),
        (lambda: JensenShannon(beta=1), "beta must lie between 0 and 1"),
        (lambda: DPace(loss=CrossEntropy(), alpha=2), "alpha must lie between 0 and 1"),
    ],
)
def test_options_without_meaning_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_d_pace_refuses_a_loss_without_values_of_single_predictions() -> None:
    with pytest.raises(CompositionError, match="use cross-entropy, tv"):
        DPace(loss=Distillation())


def test_they_are_those_of_the_package_speculators() -> None:
    eager = pytest.importorskip(
        "speculators.losses.eager", reason="speculators is not installed: pip install --no-deps speculators"
    )
    utils = pytest.importorskip("speculators.losses.utils", reason="speculators is not installed")
    teacher, student = example()
    mine, theirs = student.logits, teacher.logits[torch.arange(2)[:, None], student.position]
    pairs = [
        (TotalVariation(), eager.tv_loss),
        (NegativeLogAcceptance(), eager.neg_log_acceptance_loss),
        (LKHybrid(), eager.lk_hybrid_loss),
        (LKHybrid(eta=0), eager.kl_div_loss),
        (ReverseKL(), eager.reverse_kl_div_loss),
        (JensenShannon(), eager.js_div_loss),
    ]
    for loss, reference in pairs:
        torch.testing.assert_close(loss.values(student, teacher)[0].float(), reference(mine, theirs))
    for row in range(2):
        weights = utils.dpace_loss_decay(
            None, student.mask[row, None], 2, 0.5, eager.ce_loss(mine[row, None], theirs[row, None])
        )
        ours = DPace(loss=CrossEntropy()).weights(student, teacher)[row]
        torch.testing.assert_close((ours * student.mask[row]).float(), weights[0])
