"""Cumulated probabilities: the branch for other devices gives the same tokens, and mends sums that are not monotone."""

import pytest
import torch
from torch import Tensor

from specframe.sampling.random import cumulated, pick, uniforms

SHAPES = [(1, 5), (3, 64), (2, 3, 1000)]


@pytest.fixture
def elsewhere(monkeypatch):
    """Tensors that claim to be on another device."""

    def enter():
        monkeypatch.setattr(Tensor, "is_cpu", property(lambda tensor: False))

    return enter


def probabilities(shape, share):
    """Distributions in which a share of the tokens, first and last ones among them, has no mass."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)
    banned = torch.rand(shape, generator=torch.Generator().manual_seed(7)) < share
    banned[..., 0] = banned[..., -1] = share > 0
    banned[..., 2] = False
    return noise.masked_fill(banned, -torch.inf).softmax(-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_the_branch_for_other_devices_is_the_cpus(shape, share, elsewhere):
    probs = probabilities(shape, share)
    mass, chances = cumulated(probs), uniforms(3, 500, *shape[:-1])
    elsewhere()
    other = cumulated(probs)
    assert torch.equal(other, mass)
    wanted = pick(mass.expand(500, *shape).contiguous(), chances)
    assert torch.equal(pick(other.expand(500, *shape).contiguous(), chances), wanted)


def test_sums_that_fall_in_their_last_bits_are_mended(monkeypatch, elsewhere):
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.0, 0.25, 0.0]], dtype=torch.float64)
    tiny = 2.0**-50
    fallen = torch.tensor([[tiny, 0.25, 0.25 + tiny, 0.75, 0.75 - tiny, 1.0, 1.0 + tiny]], dtype=torch.float64)
    monkeypatch.setattr(Tensor, "cumsum", lambda tensor, *_, **__: fallen)
    elsewhere()
    mass = cumulated(probs)
    assert mass.tolist() == [[0.0, 0.25, 0.25, 0.75, 0.75, 1.0, 1.0]]
    edges = torch.tensor([0.0, 0.25 - tiny, 0.25, 0.75 - tiny, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    assert [int(pick(mass, edge[None])) for edge in edges] == [1, 1, 3, 3, 5, 5]
