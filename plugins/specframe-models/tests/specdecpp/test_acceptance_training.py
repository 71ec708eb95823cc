"""The training of an acceptance head: its loss, its rollout, and that the drafter stays as it is."""

import math

import pytest
import torch
from judged_drafter import DRAFTERS, expected_confidence, judged

from specframe.plugin import Draw, Student
from specframe.testing import check_loss, random_teacher, tiny_target
from specframe_models.specdecpp.loss import AcceptanceLoss
from specframe_models.specdecpp.rollout import AcceptanceRollout, reached


def softmax(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def accepted(target, drafter, draw, temperature):
    """The probability that the token drafted at one place is accepted, by its definition, token by token."""
    best = max(range(len(drafter)), key=drafter.__getitem__)
    if temperature == 0:
        return float(best == max(range(len(target)), key=target.__getitem__))
    p, q = (softmax([x / temperature for x in logits]) for logits in (target, drafter))
    if draw is Draw.TOP:
        return p[best]
    return sum(q[x] * min(1, p[x] / q[x]) for x in range(len(p)))


CASES = [(Draw.TOP, 0.0, 6.0), (Draw.TOP, 0.7, 1.0), (Draw.IID, 1.0, 6.0), (Draw.IID, 0.5, 2.0), (Draw.IID, 0.0, 6.0)]


@pytest.mark.parametrize(("draw", "temperature", "rejection"), CASES)
def test_the_loss_is_the_paper_s(draw, temperature, rejection):
    drafter, _, target, rollout = judged()
    teacher = random_teacher(target, 2, 12)
    student = AcceptanceRollout(rollout=rollout)(drafter, teacher, 0.0)
    total = 0.0
    for b, m in student.mask.nonzero().tolist():
        law = teacher.logits[b, student.position[b, m]].tolist()
        y = accepted(law, student.logits[b, m].tolist(), draw, temperature)
        c = expected_confidence(drafter.module.state_dict(), student.features[b, m].tolist())
        total -= y * math.log(c) + rejection * (1 - y) * math.log(1 - c)
    loss = AcceptanceLoss(draw=draw, temperature=temperature, rejection=rejection)(student, teacher)
    assert student.mask.sum() > 8
    assert loss.item() == pytest.approx(total / int(student.mask.sum()), rel=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_it_keeps_the_contract_of_losses(temperature):
    check_loss(lambda: AcceptanceLoss(temperature=temperature))


def test_a_certain_confidence_that_is_wrong_costs_a_finite_amount():
    teacher = random_teacher(tiny_target(layers=1), 1, 4)
    place = torch.tensor([[2, 3]])
    sure = torch.tensor([[0.0, 1.0]])
    loss = AcceptanceLoss()(Student(teacher.logits[:, 2:4], place, place > 0, place[0], confidence=sure), teacher)
    wrong = AcceptanceLoss()(Student(-teacher.logits[:, 2:4], place, place > 0, place[0], confidence=sure), teacher)
    assert bool(loss.isfinite()) and bool(wrong.isfinite()) and loss > 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_head_learns_and_the_drafter_stays(name):
    drafter, head, target, rollout = judged(name, dtype=torch.float32)
    teacher = random_teacher(target, 8, 24)
    fixed = {key: weight.clone() for key, weight in drafter.network.state_dict().items()}
    unroll, loss = AcceptanceRollout(rollout=rollout, reached=False), AcceptanceLoss(temperature=1.0, rejection=1.0)
    optimizer = torch.optim.AdamW(drafter.module.parameters(), lr=3e-2)
    values = []
    for _ in range(60):
        torch.manual_seed(0)
        student = unroll(drafter, teacher, 0.0)
        assert not student.logits.requires_grad
        value = loss(student, teacher)
        optimizer.zero_grad()
        value.backward()
        assert all(weight.grad is not None for weight in head.module.parameters())
        optimizer.step()
        values.append(value.item())
    y = loss.accepted(student, teacher)[student.mask]
    constant = -(y.mean() * y.mean().log() + (1 - y.mean()) * (1 - y.mean()).log()).item()
    assert values[-1] < min(0.8 * values[0], constant), "it separates places"
    assert all(torch.equal(fixed[key], weight) for key, weight in drafter.network.state_dict().items())
    assert all(weight.grad is None for weight in drafter.network.parameters())


@pytest.mark.parametrize("name", DRAFTERS)
@torch.no_grad()
def test_every_prediction_has_its_own_confidence(name):
    drafter, head, target, rollout = judged(name)
    teacher = random_teacher(target, 2, 12)
    torch.manual_seed(0)
    student = AcceptanceRollout(rollout=rollout, reached=False)(drafter, teacher, 0.0)
    torch.manual_seed(0)
    plain = rollout(drafter, teacher, 0.0)
    assert torch.equal(student.logits, plain.logits) and torch.equal(student.mask, plain.mask)
    if name != "fspad":  # whose features are not what its head reads
        assert torch.allclose(student.confidence, head.confidence(plain.features), atol=1e-12)
    assert student.confidence.shape == student.mask.shape


@torch.no_grad()
def test_a_level_counts_where_the_levels_above_would_be_drafted():
    drafter, _, target, rollout = judged(vocab=3)
    teacher = random_teacher(target, 3, 20)
    student = rollout(drafter, teacher, 0.0)
    best = student.logits.argmax(-1)
    place = {
        (b, int(student.position[b, m]), int(student.level[m])): int(best[b, m])
        for b in range(3)
        for m in range(len(student.level))
        if student.position[b, m] >= student.level[m]  # the others have no root before them
    }
    there = reached(student, teacher)
    found = set()
    for b in range(3):
        for m, level in enumerate(student.level.tolist()):
            position = int(student.position[b, m])
            if position < level:
                continue
            above = [(position - up, level - up) for up in range(1, level)]
            wanted = all(place[b, at, n] == int(teacher.tokens[b, at + 1]) for at, n in above)
            assert bool(there[b, m]) == wanted
            found.add((level, wanted))
    assert found == {(1, True), (2, True), (2, False), (3, True), (3, False)}
