"""Rollouts: which pair predicts what, at which level, and what the second forward sees."""

from __future__ import annotations

import math

import pytest
import torch

from specframe.components.rollouts import shifted
from specframe.components.rollouts.teacher_forced import AllLevels, Groups, TeacherForced
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import PairSpec, Student, Teacher
from specframe_falcon.glancing import Glancing, glances


def texts(target, batch=3, length=19) -> Teacher:
    tokens = torch.randint(1, 40, (batch, length))
    mask = torch.rand(batch, length) < 0.8
    return target.teach(tokens, mask)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_teacher_forced_pairs_are_aligned(target, make_drafter, block):
    teacher = texts(target)
    crops = set()
    for _ in range(12):
        drafter = make_drafter(target, block=block)
        student = TeacherForced(noise=0.0)(drafter, teacher, 0.0)
        (features, tokens), n = drafter.inputs[0], student.position.shape[1]
        crops.add(n)
        for b in range(3):
            end = n - 1
            for i in range(n):
                assert torch.equal(features[b, i], teacher.features["last"][b, i])
                assert tokens[b, i] == teacher.tokens[b, i + 1]
                assert student.position[b, i] == i + block
                assert student.mask[b, i] == teacher.mask[b, i + block]
                # the block's last position: end, end - block, ... whichever is the first at or after i
                last = min(e for e in range(end, -1, -block) if e >= i)
                assert student.level[i] == i + block - last
        assert torch.equal(drafter.logits(student.features), student.logits)
    assert crops == {19 - block - c for c in range(block)}, "all alignments are trained"


def test_noise_is_uniform_of_the_given_width(target, make_drafter):
    teacher = texts(target, batch=8, length=60)
    drafter = make_drafter(target)
    TeacherForced(noise=0.25)(drafter, teacher, 0.5)
    features = drafter.inputs[0][0]
    gap = features - teacher.features["last"][:, : features.shape[1]]
    assert gap.abs().max() <= 0.25 + 1e-5
    assert gap.std() == pytest.approx(0.25 / math.sqrt(3), rel=0.05)


def literal_glancing(drafter, teacher: Teacher, n: int, glanced: list[list[bool]], reading: str):
    """The second forward's inputs, position by position."""
    k, truth = drafter.block, teacher.features["last"]
    features, paired = truth[:, :n].clone(), teacher.tokens[:, 1 : n + 1].clone()
    first = drafter.predict(truth[:, :n], teacher.tokens[:, 1 : n + 1])
    for b in range(len(features)):
        for j in range(k, n):
            if not glanced[b][j]:
                features[b, j] = first[b, j - k]
                if reading == "paper":
                    paired[b, j] = drafter.logits(first[b, j - k]).argmax()
    return features, paired, first


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("reading", ["paper", "features"])
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_glancing_is_its_literal_restatement(make_target, make_drafter, block, reading, progress):
    target = make_target(dtype=torch.float64)
    drafter = make_drafter(target, block=block)
    teacher = texts(target)
    student = Glancing(start=0.9, noise=0.0, reading=reading, first=True)(drafter, teacher, progress)
    n = student.position.shape[1] // 2
    true = teacher.features["last"][:, :n]
    seen_features, seen_tokens = drafter.inputs[1]
    glanced = [[bool((seen_features[b, j] == true[b, j]).all()) for j in range(n)] for b in range(3)]
    features, paired, first = literal_glancing(drafter, teacher, n, glanced, reading)
    second = drafter.predict(features, paired)
    torch.testing.assert_close(seen_features, features, rtol=0, atol=1e-12)
    assert torch.equal(seen_tokens, paired)
    torch.testing.assert_close(student.features, torch.cat([first, second], 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(student.logits, drafter.logits(student.features), rtol=0, atol=1e-12)
    assert torch.equal(student.position[:, :n], student.position[:, n:])
    assert torch.equal(student.level[n:], student.level[:n] + block)
    # how many were put right: lambda times the Hamming distance over scored positions
    for b in range(3):
        assert all(glanced[b][:block])
        distance = 0
        for i in range(n):
            if teacher.mask[b, i + block]:
                guess = drafter.logits(first[b, i]).argmax()
                distance += int(guess != teacher.logits[b, i + block].argmax())
        there = sum(bool(teacher.mask[b, j + block]) for j in range(block, n))
        assert sum(glanced[b][block:]) == min(int(0.9 * (1 - progress) * distance), there)


@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_glanced_runs_are_block_tails_before_scored_predictions(target, block):
    teacher = texts(target, batch=200, length=23)
    pairs = shifted.shift(teacher, PairSpec(), block)
    count = torch.randint(0, 8, (200,))
    chosen = glances(pairs, block, count)
    n = pairs.tokens.shape[1]
    ends = list(range(n - 1, -1, -block))
    partial = 0
    for b in range(200):
        eligible = [j >= block and bool(teacher.mask[b, j + block]) for j in range(n)]
        assert not any(chosen[b, j] and not eligible[j] for j in range(n))
        assert chosen[b].sum() == min(int(count[b]), sum(eligible))
        cut = 0
        for end in ends:
            inside = [j for j in range(max(0, end - block + 1), end + 1) if eligible[j]]
            taken = [bool(chosen[b, j]) for j in inside]
            assert taken == sorted(taken), "a run is the tail of its block"
            cut += 0 < sum(taken) < len(taken)
        assert cut <= 1, "only the last run is cut short"
        partial += cut
    assert block == 1 or partial
    used = chosen.float().mean(0)[block + 1 : n - block]
    assert used.min() > 0.3 * used.max(), "every place gets its turn"


def test_a_block_of_0_is_scored_where_its_entries_stand(target):
    teacher = texts(target, batch=2, length=9)
    pairs = shifted.shift(teacher, PairSpec(), 0)
    assert torch.equal(pairs.features, teacher.features["last"])
    assert torch.equal(pairs.tokens[:, :-1], teacher.tokens[:, 1:]) and not pairs.tokens[:, -1].any()
    assert pairs.position.tolist() == [list(range(9))] * 2 and pairs.level.tolist() == [1] * 9
    assert torch.equal(pairs.mask, teacher.mask)


@pytest.mark.parametrize("block", [1, 2, 3, 4])
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_the_released_glancing_shows_rows_their_own_answer(make_target, make_drafter, block, progress):
    target = make_target(dtype=torch.float64)
    drafter = make_drafter(target, block=block)
    teacher = texts(target)
    student = Glancing(reading="released", start=0.9, end=0.3, noise=0.0)(drafter, teacher, progress)
    features, tokens = drafter.inputs[1]
    n = features.shape[1]
    true, wrong = teacher.features["last"], 0
    first = drafter.predict(true[:, :n], teacher.tokens[:, 1 : n + 1])
    for b in range(3):
        shown = [bool((features[b, i] == true[b, i + block]).all()) for i in range(n)]
        for i in range(n):
            source = i + block if shown[i] else i
            assert torch.equal(features[b, i], true[b, source]) and tokens[b, i] == teacher.tokens[b, source + 1]
        scored_rows = [i for i in range(n) if teacher.mask[b, i + block]]
        assert not any(shown[i] for i in range(n) if i not in scored_rows)
        wrong = sum(
            int(drafter.logits(first[b, i]).argmax() != teacher.logits[b, i + block].argmax()) for i in scored_rows
        )
        count = int((0.9 - 0.6 * progress) * wrong)
        rows = [i for i in scored_rows if i + block + 1 < teacher.tokens.shape[1]]
        candidates = rows[::block]
        if block <= 2:
            assert all(i in candidates for i in range(n) if shown[i])
            assert sum(shown) == min(count, len(candidates))
        else:
            assert sum(shown) <= min(count // block, len(candidates)) * (block - 1)
            assert bool(sum(shown)) == (count >= block)
    assert student.level.min() >= 1 and student.level.max() <= block


def test_glancing_falls_to_nothing_and_is_off_in_the_first_block(target, make_drafter):
    teacher = texts(target, batch=4, length=30)
    counts = []
    for progress in (0.0, 0.5, 1.0):
        drafter = make_drafter(target)
        student = Glancing(noise=0.0)(drafter, teacher, progress)
        truth = teacher.features["last"][:, : student.position.shape[1]]
        counts.append(int((drafter.inputs[1][0] == truth).all(-1)[:, 2:].sum()))
    assert counts[0] > counts[1] > counts[2] == 0


def test_only_the_second_forward_gets_gradients_unless_both_are_scored(target, make_drafter):
    teacher = texts(target)
    drafter = make_drafter(target)
    student = Glancing()(drafter, teacher, 0.3)
    assert student.level.min() == 3 and student.level.max() == 4
    assert not drafter.inputs[1][0].requires_grad
    student.logits.sum().backward()
    assert all(p.grad is not None for p in drafter.module.parameters())
    both = Glancing(first=True)(drafter, teacher, 0.3)
    assert set(both.level.tolist()) == {1, 2, 3, 4}
    n = both.position.shape[1] // 2
    grads = torch.autograd.grad(both.logits[:, :n].sum(), list(drafter.module.parameters()))
    assert any(g.abs().sum() > 0 for g in grads)


@pytest.mark.parametrize("rollout", [TeacherForced(noise=0.0), Glancing(noise=0.0, first=True)])
def test_rows_do_not_leak_into_each_other(target, make_drafter, rollout):
    teacher = texts(target)
    drafter = make_drafter(target)

    def run(rows: Teacher) -> Student:
        torch.manual_seed(3)
        return rollout(drafter, rows, 1.0)

    whole = run(teacher)
    tokens = teacher.tokens.clone()
    tokens[1:] = torch.randint(1, 40, tokens[1:].shape)
    other = run(target.teach(tokens, teacher.mask))
    torch.testing.assert_close(whole.logits[0], other.logits[0], rtol=0, atol=1e-6)
    assert not torch.allclose(whole.logits[1], other.logits[1])


@pytest.mark.parametrize("rollout", [TeacherForced, AllLevels, Groups])
def test_negative_noise_unfit_drafters_and_short_texts_are_refused(rollout, target, make_drafter, teacher):
    with pytest.raises(InputError, match="noise"):
        rollout(noise=-1.0)
    with pytest.raises(CompositionError, match="reads the target's features"):
        rollout()(object(), teacher, 0.0)
    short = target.teach(torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1).bool())
    with pytest.raises(InputError, match=r"train\.length"):
        rollout()(make_drafter(target, block=1), short, 0.0)


def test_unfit_drafters_options_and_texts_are_refused(target, make_drafter, teacher):
    with pytest.raises(CompositionError, match="glancing"):
        Glancing()(object(), teacher, 0.0)
    with pytest.raises(InputError, match="start"):
        Glancing(start=1.5)
    with pytest.raises(InputError, match="too short"):
        shifted.shift(target.teach(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3).bool()), PairSpec(), 4)
