"""EAGLE's drafter begins a parallel one: a first token is drafted as it was, and training goes on from there."""

import logging

import pytest
import torch

from specframe import WeightsError
from specframe.testing import shake, tiny_target
from specframe_eagle.drafter import Eagle
from specframe_parallelspec.drafter import ParallelSpec


@pytest.fixture
def target():
    return tiny_target(vocab=11, size=16)


@pytest.fixture
def eagle(target, tmp_path):
    drafter = Eagle()
    drafter.bind(target)
    shake(drafter.module, by=1 / 2)
    drafter.save(tmp_path)
    drafter = Eagle(weights=str(tmp_path))
    drafter.bind(target)
    return drafter


def test_a_first_token_is_drafted_as_eagle_does(target, eagle, tmp_path, caplog):
    begun = ParallelSpec(masks=2, weights=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        begun.bind(target)
    assert "has no masks: train it" in caplog.text
    pairs = torch.randn(2, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        groups = begun.network.groups(pairs)  # [B, n, 1 + K, H]
        tokens = pairs[..., :16], pairs[..., 16:]
        alone = eagle.network.unroll(tokens[1], torch.arange(14).view(2, 7), lambda _: tokens[0], None, None)
    assert torch.allclose(groups[:, :, 0], alone.features[:, :, 0], atol=1e-9)
    begun.save(tmp_path / "trained")
    again = ParallelSpec(masks=2, weights=str(tmp_path / "trained"))
    again.bind(target)
    assert again.network.masks.shape == (2, 16)


def test_a_drafter_of_tokens_alone_does_not_begin_so(target, eagle, tmp_path):
    with pytest.raises(WeightsError, match="does not fit"):
        ParallelSpec(masks=2, features=False, weights=str(tmp_path)).bind(target)
