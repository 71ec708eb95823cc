"""Trained by recipe, as users will do it."""

from __future__ import annotations

import pytest

from specframe.testing import check_training

MODEL = "{use: model, fresh: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}}"


@pytest.mark.parametrize("drafter", ["{use: eagle3, taps: [0]}", MODEL])
def test_replay_trains_what_drafts(drafter: str) -> None:
    check_training(drafter, "[{use: distillation, alpha: 1.0}]", rollout="replay")


def test_tvd_plus_trains_what_drafts() -> None:
    check_training("{use: eagle3, taps: [0]}", "[{use: tvd-plus}]", rollout="teacher-forced")
