"""Drafters with a head per level: what is predicted from where, the decayed loss on texts, and the simulated tau."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.rollouts.teacher_forced import AllLevels
from specframe.kernel.errors import InputError
from specframe.kernel.types import PairSpec, Predicted, Student, Teacher
from specframe.testing import check_loss
from specframe.training.validation import agreement


class Recorder:
    """Returns with every prediction what it was asked with: position i of row b, and the level's last token."""

    module = nn.Linear(1, 1)
    spec, block = PairSpec(imitates=None, feeds=False), 1

    def __init__(self, levels: int) -> None:
        self.levels = levels

    def save(self, folder): ...

    def fuse(self, features):
        return features

    def read(self, predicted):
        return predicted.hidden

    def unroll(self, features, tokens, positions=None, mask=None):
        assert tokens.shape[1] == features.shape[1] + self.levels - 1
        last = tokens.unfold(1, self.levels, 1)  # [B, n, K]
        where = features[..., :1, None].expand(-1, -1, self.levels, 1)[..., 0]
        return Predicted(torch.stack([where, last.to(features.dtype)], -1))  # [B, n, K, 2]


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_every_position_predicts_every_level_inside_the_text(levels, numbered):
    tokens, mask = numbered.tokens, numbered.mask
    batch, length = tokens.shape
    student = AllLevels()(Recorder(levels), numbered, 0.0)
    assert student.logits.shape[:2] == student.position.shape == student.mask.shape == (batch, (length - 1) * levels)
    seen = set()
    for b in range(batch):
        for m in range(student.position.shape[1]):
            origin, level = m // levels, int(student.level[m])
            assert level == m % levels + 1
            at = origin + level  # what follows this position is predicted
            if at >= length:
                assert not student.mask[b, m]
                continue
            assert student.position[b, m] == at
            assert student.mask[b, m] == mask[b, at]
            assert student.logits[b, m].tolist() == [100 * b + origin, tokens[b, at]]
            seen.add((b, origin, level))
    assert len(seen) == batch * sum(min(levels, length - 1 - i) for i in range(length - 1))


def test_noise_is_at_most_so_large(teacher):
    still, noisy = (AllLevels(noise=noise)(Recorder(2), teacher, 0.0) for noise in (0.0, 0.5))
    gap = (still.logits - noisy.logits)[..., 0].abs()
    assert 0 < gap.max() <= 0.5


@pytest.mark.parametrize("labels", ["law", "text"])
@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_cross_entropy_is_its_formula(labels, decay):
    batch, length, vocab = 2, 6, 5
    teacher = Teacher(
        tokens=torch.randint(vocab, (batch, length)),
        mask=torch.ones(batch, length).bool(),
        features={},
        logits=torch.randn(batch, length, vocab, dtype=torch.float64),
    )
    position = torch.tensor([[1, 2, 3, 5], [0, 4, 5, 2]])
    mask = torch.tensor([[True, True, False, True], [True, True, True, True]])
    level = torch.tensor([1, 2, 3, 1])
    student = Student(torch.randn(batch, 4, vocab, dtype=torch.float64), position, mask, level)
    total, count = 0.0, 0
    for b in range(batch):
        for m in range(4):
            at = int(position[b, m])
            if not mask[b, m] or (labels == "text" and at + 1 == length):
                continue
            q = student.logits[b, m].softmax(0).tolist()
            p = teacher.logits[b, at].softmax(0).tolist()
            if labels == "text":
                p = [float(v == teacher.tokens[b, at + 1]) for v in range(vocab)]
            total -= decay ** (int(level[m]) - 1) * sum(x * math.log(y) for x, y in zip(p, q, strict=True))
            count += 1
    assert count == (5 if labels == "text" else 7)
    loss = CrossEntropy(labels=labels, decay=decay)
    assert loss(student, teacher).item() == pytest.approx(total / count, abs=1e-12)
    check_loss(lambda: CrossEntropy(labels=labels, decay=decay))


@pytest.mark.parametrize("decay", [0.0, 1.1])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(InputError, match="decay"):
        CrossEntropy(decay=decay)


def test_agreement_walks_the_text_as_decoding_does():
    batch, length, levels, vocab = 5, 40, 3, 2
    logits = torch.randn(batch, length, vocab)
    mask = torch.ones(batch, length).bool()
    mask[:, :6] = False  # a prompt
    mask[1, 30:] = False  # padding
    teacher = Teacher(torch.zeros(batch, length).long(), mask, {"last": logits[..., :1]}, logits)

    class Guesser(Recorder):
        def unroll(self, features, tokens, positions=None, mask=None):
            return Predicted(torch.randn(*features.shape[:2], self.levels, vocab))

    student = AllLevels()(Guesser(levels), teacher, 1.0)
    right, asked, tokens = [0] * levels, [0] * levels, 0
    for b in range(batch):
        origin = 0
        while origin < length - 1:
            if not mask[b, origin + 1]:
                origin += 1
                continue
            accepted = 0
            for level in range(1, levels + 1):
                if origin + level >= length or not mask[b, origin + level]:
                    break
                asked[level - 1] += 1
                guess = student.logits[b, origin * levels + level - 1].argmax()
                if guess != logits[b, origin + level].argmax():
                    break
                right[level - 1] += 1
                accepted += 1
            origin += accepted + 1
            tokens += accepted + 1
    assert agreement(student, teacher).tolist() == [right, asked]
    assert tokens == sum(right) + asked[0]
