"""Group-wise training: which member of which group is scored against what."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specframe.components.rollouts.teacher_forced import Groups
from specframe.kernel.types import PairSpec, Predicted


class Recorder:
    """Predicts what it was asked with: the feature, the token paired with it, and the level."""

    spec, block = PairSpec(), 1

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self.module = nn.Linear(1, 1)

    def fuse(self, features):
        return features

    def save(self, folder): ...

    def unroll(self, features, tokens, positions=None, mask=None):
        tokens = tokens[:, : features.shape[1]]
        pair = torch.stack([features[..., 0], tokens.to(features.dtype)], -1)[:, :, None]  # [B, n, 1, 2]
        level = torch.arange(1, self.levels + 1, dtype=features.dtype)[:, None]
        batch, n = tokens.shape
        predicted = torch.cat([pair.expand(-1, -1, self.levels, -1), level.expand(batch, n, -1, -1)], -1)
        return Predicted(predicted, predicted)

    def read(self, predicted):
        return -predicted.hidden


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_every_position_begins_a_group(levels, numbered):
    tokens, mask = numbered.tokens, numbered.mask
    batch, length = tokens.shape
    student = Groups()(Recorder(levels), numbered, 0.0)
    assert student.position.shape == student.mask.shape == (batch, (length - 1) * levels)
    assert torch.equal(student.logits, -student.features)
    for b in range(batch):
        for m in range(student.position.shape[1]):
            origin, level = m // levels, m % levels + 1
            assert student.level[m] == level
            assert student.features[b, m].tolist() == [100 * b + origin, tokens[b, origin + 1], level]
            if origin + level < length:
                assert student.position[b, m] == origin + level
                assert student.mask[b, m] == mask[b, origin + level]
            else:
                assert not student.mask[b, m]
                assert student.position[b, m] < length


def test_noise_is_for_training(teacher):
    recorder = Recorder(2)
    still = Groups()(recorder, teacher, 0.0).features
    noisy = Groups(noise=0.5)(recorder, teacher, 0.0).features
    assert 0 < (still - noisy)[..., 0].abs().max() <= 0.5
    assert torch.equal(still[..., 1:], noisy[..., 1:])
    recorder.module.eval()
    assert torch.equal(still, Groups(noise=0.5)(recorder, teacher, 1.0).features)
