"""From texts to weights to decoding, with the tau that validation simulates."""

from __future__ import annotations

from specframe.testing import check_training


def test_it_learns_and_decodes_as_validation_simulates() -> None:
    losses = "[{use: cross-entropy, labels: text, decay: 0.6}]"
    check_training("{use: mtp}", losses, rollout="training-time-test", levels=8, steps=60)
