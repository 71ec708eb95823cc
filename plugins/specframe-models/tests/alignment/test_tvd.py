"""TVD++ against its formula, against tokens that are drawn, and against total variation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.components.losses.divergences import TotalVariation
from specframe.plugin import Student, Teacher
from specframe.testing import check_loss
from specframe.testing.losses import example
from specframe_models.alignment.tvd import LEAST, TVDPlus

OVER = ["batch", "position"]


def gradient(loss, student: Student, teacher: Teacher) -> Tensor:
    logits = student.logits.clone().requires_grad_()
    loss(replace(student, logits=logits), teacher).backward()
    return logits.grad


def literal(student: Student, teacher: Teacher, over: str) -> Tensor:
    """The gradient at the logits, token by token: - q (advantage) (1 - q) for a token's own logit, and so on."""
    batch, count, vocab = student.logits.shape
    p = teacher.logits.softmax(-1)
    q = student.logits.softmax(-1)
    rewards, moments = {}, []
    for b in range(batch):
        for m in range(count):
            if student.mask[b, m]:
                law = p[b, student.position[b, m]]
                rewards[b, m] = [1.0 if law[x] >= q[b, m, x] else 0.0 for x in range(vocab)]
                moments.append(sum(float(q[b, m, x]) * r for x, r in enumerate(rewards[b, m])))
    found = torch.zeros_like(student.logits)
    for place, (spot, reward) in enumerate(rewards.items()):
        mean = sum(moments) / len(moments) if over == "batch" else moments[place]
        deviation = max((mean * (1 - mean)) ** 0.5, LEAST)
        for x, r in enumerate(reward):
            score = -q[spot].clone()  # the gradient of log q(x) at the logits
            score[x] += 1
            found[spot] -= q[spot][x] * (r - mean) / deviation * score / len(rewards)
    return found


@pytest.mark.parametrize("over", OVER)
def test_its_gradient_is_the_policy_gradient_written_out(over: str) -> None:
    teacher, student = example()
    torch.testing.assert_close(gradient(TVDPlus(over=over), student, teacher), literal(student, teacher, over))


@pytest.mark.parametrize("over", OVER)
def test_its_gradient_is_total_variations_divided_by_the_deviation(over: str) -> None:
    """In exact expectation the mean makes no difference."""
    teacher, student = example()
    rows = torch.arange(2)[:, None]
    p, q = teacher.log_law[rows, student.position], student.log_law
    mean = (q.exp() * (p >= q)).sum(-1)
    if over == "batch":
        mean = mean[student.mask].mean().expand_as(mean)
    tv = gradient(TotalVariation(), student, teacher)
    torch.testing.assert_close(
        gradient(TVDPlus(over=over), student, teacher), tv / (mean * (1 - mean)).sqrt()[..., None]
    )


def drawn_gradient(p: Tensor, q: Tensor, reward, count: int) -> Tensor:
    """- the mean of reward(x) grad log q(x) over tokens drawn from q, at the logits [V]."""
    tokens = torch.multinomial(q, count, replacement=True, generator=torch.Generator().manual_seed(0))
    score = torch.nn.functional.one_hot(tokens, len(q)) - q  # [count, V]
    return -(reward((p >= q)[tokens].double())[:, None] * score).mean(0)


def test_exact_expectations_are_what_drawing_comes_to() -> None:
    """Total variation's gradient, and that of TVD++, against the estimates from 400,000 drawn tokens."""
    torch.manual_seed(3)
    teacher_logits, logits = torch.randn(2, 1, 1, 8, dtype=torch.float64)
    one = torch.zeros(1, 1, dtype=torch.int64)
    teacher, student = (
        Teacher(one, one == 0, {}, teacher_logits),
        Student(logits, one, one == 0, torch.tensor([1])),
    )
    p, q = teacher_logits[0, 0].softmax(-1), logits[0, 0].softmax(-1)
    plain = drawn_gradient(p, q, lambda r: r, 400_000)
    normalised = drawn_gradient(p, q, lambda r: (r - r.mean()) / r.std(), 400_000)
    exact = gradient(TotalVariation(), student, teacher)[0, 0]
    assert exact.norm() > 0.05
    torch.testing.assert_close(plain, exact, atol=2e-3, rtol=0)
    torch.testing.assert_close(normalised, gradient(TVDPlus(), student, teacher)[0, 0], atol=4e-3, rtol=0)
    # drawn, the advantage has less variance than the reward: why the paper takes it
    few = [torch.Generator().manual_seed(seed) for seed in range(200)]

    def spread(reward) -> float:
        found = []
        for draw in few:
            tokens = torch.multinomial(q, 32, replacement=True, generator=draw)
            score = torch.nn.functional.one_hot(tokens, len(q)) - q
            found.append(-(reward((p >= q)[tokens].double())[:, None] * score).mean(0))
        return float(torch.stack(found).var(0).sum())

    mean = float((q * (p >= q)).sum())
    assert spread(lambda r: r - mean) < 0.9 * spread(lambda r: r)


def test_its_value_is_total_variation() -> None:
    teacher, student = example()
    for over in OVER:
        assert TVDPlus(over=over)(student, teacher).item() == pytest.approx(float(TotalVariation()(student, teacher)))


def test_a_support_is_compared_where_it_is() -> None:
    teacher, student = example()
    support = torch.tensor([3, 0, 4])
    small = replace(student, logits=student.logits[..., :3], support=support)
    normaliser = teacher.logits.logsumexp(-1)
    cut = replace(teacher, logits=teacher.logits[..., support], support=support, normaliser=normaliser)
    torch.testing.assert_close(gradient(TVDPlus(), small, cut), gradient(TVDPlus(), small, teacher))
    with pytest.raises(CompositionError, match="support is not the drafter's"):
        TVDPlus()(small, replace(cut, support=support.flip(0)))


def test_certain_predictions_have_a_finite_gradient() -> None:
    """A drafter that is never rejected, and one that always is: the deviation is 0."""
    one = torch.zeros(1, 1, dtype=torch.int64)
    for theirs, mine in (([0.0, 0.0], [0.0, 0.0]), ([99.0, 0.0], [0.0, 99.0])):
        teacher = Teacher(one, one == 0, {}, torch.tensor([[theirs]]))
        student = Student(torch.tensor([[mine]]), one, one == 0, torch.tensor([1]))
        assert gradient(TVDPlus(), student, teacher).isfinite().all()


@pytest.mark.parametrize("over", OVER)
def test_it_keeps_the_contract_of_losses(over: str) -> None:
    check_loss(lambda: TVDPlus(over=over))
    assert TVDPlus(over=over).rowwise is (over == "position") and TVDPlus.detaches


def test_refusals() -> None:
    with pytest.raises(InputError, match="over must be batch or position"):
        TVDPlus(over="sequence")
