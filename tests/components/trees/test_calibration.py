"""A calibration is the likeliest one, and a calibrated tree is the tree of the sharpened laws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specframe.components.trees.calibration import Calibration, Fit, read_calibration
from specframe.components.trees.dynamic import Dynamic
from specframe.kernel.errors import InputError
from specframe.plugin import Context
from specframe.sampling.laws import Sampling
from tests.components.path_drafter import PathDrafter, Ranked


def literal_power(logits: Tensor, tokens: Tensor) -> float:
    """The likeliest power with the prior of `Fit`, by Newton's method on its logarithm."""
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(50):
        own = (x.exp() * logits.double()).log_softmax(-1).gather(1, tokens[:, None])
        slope = torch.autograd.grad([x**2 / 2 - own.sum()], [x], create_graph=True)[0]
        bend = torch.autograd.grad([slope], [x])[0]
        x = (x - slope / bend.abs()).detach().requires_grad_()
    return float(x.detach().exp())


@pytest.mark.parametrize("power", [0.4, 1.0, 1.7, 5.0])
def test_the_fit_is_the_likeliest_power(power: float) -> None:
    random = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(600, 9, generator=random)
    tokens = torch.multinomial((power * logits).softmax(-1), 1, generator=random)[:, 0]
    fit = Fit()
    for part in range(0, 600, 150):  # counted in parts, as decoding does
        fit.add(logits[part : part + 150], tokens[part : part + 150], 0)
    found = fit.calibration.power(0)
    assert found == pytest.approx(literal_power(logits, tokens), rel=0.01)
    assert found == pytest.approx(power, rel=0.15) and fit.seen == [600]


def test_little_seen_moves_a_power_little_and_the_impossible_not_at_all() -> None:
    fit = Fit()
    assert fit.calibration.powers == (1.0,)
    logits = torch.tensor([[0.0, -2.0, -torch.inf]])
    fit.add(logits, torch.tensor([0]), 1)
    first, second = fit.calibration.power(0), fit.calibration.power(1)
    assert first == pytest.approx(1.0) and 1.0 < second < 1.3
    fit.add(logits, torch.tensor([2]), 1)
    assert fit.calibration.powers == (first, second) and fit.seen == [0, 1]
    for _ in range(5000):
        fit.likelihood[0] += torch.linspace(-1, 0, len(fit.likelihood[0]))  # the sharper the better
    assert fit.calibration.powers[0] == pytest.approx(32), "no power beyond those that were measured"
    for sign, end in ((1, 32), (-1, 1 / 8)):  # ever steeper towards an end
        fit.likelihood[0] = (sign * torch.linspace(-9, 9, len(fit.likelihood[0]), dtype=torch.float64)).exp()
        assert fit.calibration.powers[0] == pytest.approx(end)


class Sharpened(PathDrafter):
    """One whose laws are sharpened already."""

    calibration = Calibration((1.0,))

    def raw(self, above: tuple[int, ...], level: int) -> Tensor:
        """The logits, times the power of their level."""
        return super().raw(above, level) * self.calibration.power(len(above) - 1 + level)


@given(
    powers=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=4),  # exact in every dtype
    block=st.integers(1, 3),
    nodes=st.integers(1, 12),
    salt=st.integers(0, 999),
    gain=st.sampled_from([0.0, 0.2]),
)
def test_a_calibrated_tree_is_the_tree_of_the_sharpened_laws(
    powers: list[float], block: int, nodes: int, salt: int, gain: float
) -> None:
    drafter = Sharpened(6, block, salt)
    drafter.calibration = Calibration(tuple(powers))
    calibrated = Dynamic(depth=4, width=3, nodes=nodes, gain=gain, calibration=powers)
    plain = Dynamic(depth=4, width=3, nodes=nodes, gain=gain)
    roots = torch.tensor([0, 1])
    one = calibrated.grow(PathDrafter(6, block, salt).expand, roots, Context(Sampling(), Ranked()))
    other = plain.grow(drafter.expand, roots, Context(Sampling(), Ranked()))
    for name in ("tokens", "parent", "valid"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_a_calibration_comes_from_the_file_of_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps({"acceptance": [[0.7]], "calibration": [1.5, 2]}))
    assert read_calibration(path) == Calibration((1.5, 2.0)) == Dynamic(calibration=path).calibration
    assert Dynamic(calibration=[1.5, 2.0]).calibration == Calibration((1.5, 2.0)) and Dynamic().calibration is None
    path.write_text(json.dumps({"acceptance": [[0.7]]}))  # of an earlier version
    with pytest.raises(InputError, match="holds no calibration: measure one with `specframe profile"):
        read_calibration(path)
    with pytest.raises(InputError, match="cannot read the calibration"):
        read_calibration(tmp_path / "none.json")
    for powers in ([], [1.0, 0.0], [float("inf")]):
        with pytest.raises(InputError, match="all of them above 0"):
            Dynamic(calibration=powers)
