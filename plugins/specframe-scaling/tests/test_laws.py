"""Planted laws are found again, with intervals that cover them, and the right one is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import planted
import pytest

from specframe_scaling.laws import Linear, Logit, Saturating, judge
from specframe_scaling.points import Results
from specframe_scaling.resampling import Sums, interval, resample
from specframe_scaling.throughput import Knee

GRID = [(tokens, size) for tokens in planted.TOKENS for size in planted.SIZES.values()]
TOKENS, PARAMETERS = (np.array(column, dtype=float) for column in zip(*GRID, strict=True))


def sums(tau: np.ndarray, noise: float = 0.0, depth: int = 6) -> Sums:
    """Points of this tau, [N], whatever reached which depth."""
    tau = tau + np.random.default_rng(1).normal(0, noise, len(tau))
    reached = np.zeros((1, len(tau), depth))
    reached[..., 0] = 1e4 * (tau - 1)
    return Sums(TOKENS, PARAMETERS, np.full((1, len(tau)), 1e4), reached, np.ones((1, len(tau))))


def test_the_logit_s_slopes_are_found():
    law = Logit.fit(resample(planted.results(3, cycles=4000, spread=0.0, shift=0.0), 0))
    assert law.coefficients.shape == (1, 3, 3)
    assert law.coefficients[0, :, 1] == pytest.approx(planted.SLOPES[0], abs=0.03)
    assert law.coefficients[0, :, 2] == pytest.approx(planted.SLOPES[1], abs=0.06)
    place = np.array([2e6]), np.array([5e5])
    assert law.tau(*place)[0, 0] == pytest.approx(planted.tau(2e6, 5e5), rel=0.01)


def test_the_logarithm_s_coefficients_are_found():
    tau = 1.9 + 0.4 * (np.log10(TOKENS) - 6) + 0.2 * (np.log10(PARAMETERS) - 6)
    law = Linear.fit(sums(tau, noise=0.01))
    assert law.coefficients[0, 1:] == pytest.approx([0.4, 0.2], abs=0.02)
    assert "log10(tokens)" in law.words()


def test_the_limit_of_a_power_law_is_found():
    tau = 3.0 - 1.0 * (TOKENS / 1e5) ** -0.4 * (PARAMETERS / 1e6) ** -0.1
    law = Saturating.fit(sums(tau, noise=0.002))
    assert law.coefficients[0, 0] == pytest.approx(3.0, abs=0.05)
    assert law.tau(np.array([2e7]), np.array([1e6]))[0, 0] == pytest.approx(3.0 - 200**-0.4, abs=0.03)
    value = float(law.words().split("= ")[1].split(" -")[0])
    assert value == pytest.approx(law.coefficients[0, 0], abs=0.01)


@pytest.mark.parametrize(
    ("tau", "name"),
    [
        (1.9 + 0.4 * (np.log10(TOKENS) - 6), "linear"),
        (3.0 - (TOKENS / 1e5) ** -0.6, "saturating"),
    ],
)
def test_the_law_that_predicts_the_most_tokens_is_chosen(tau, name):
    chosen = judge(sums(tau, noise=0.001))[0]
    assert chosen.law.name == name and chosen.held_out < 0.01


def test_a_point_that_is_held_out_is_not_seen():
    tau = 1.9 + 0.4 * (np.log10(TOKENS) - 6)
    bent = np.where(TOKENS.max() == TOKENS, 3 * tau, tau)
    errors = {each.law.name: each.held_out for each in judge(sums(bent))}
    assert errors["linear"] == pytest.approx(2 / 3, abs=0.01)


def test_planted_acceptances_are_predicted_where_they_were_held_out():
    found = judge(resample(planted.results(5), 20))
    logit = next(each for each in found if each.law.name == "logit")
    assert logit.held_out < 0.05 and logit.largest < 0.05


@pytest.mark.parametrize(("trials", "least"), [(15, 12), pytest.param(100, 89, marks=pytest.mark.full)])
def test_intervals_cover_the_planted_tau_95_times_in_100(trials, least):
    """Of prompts that are harder or easier the true tau is the mean over many; it is measured here on 20,000."""
    place = np.array([1e6]), np.array([7e5])
    ease = np.random.default_rng(0).normal(0, 0.25, 20_000)
    alpha = 1 / (1 + np.exp(-(planted.logits(1e6, 7e5)[None] + ease[:, None])))
    truth = 1 + alpha.cumprod(1).sum(1).mean()
    covered = 0
    for seed in range(trials):
        low, high = interval(Logit.fit(resample(planted.results(seed), 100, seed)).tau(*place)[:, 0])
        covered += low <= truth <= high
    assert covered >= least


def test_an_interval_of_the_prompts_alone_is_too_narrow_where_seeds_differ():
    found = planted.results(2, spread=0.0, cycles=2000, shift=0.2)
    place = np.array([1e6]), np.array([7e5])
    alone = Results([replace(p, seed=0) for p in found.points if p.seed == 0])
    low, high = interval(Logit.fit(resample(found)).tau(*place)[:, 0])
    narrow = interval(Logit.fit(resample(alone)).tau(*place)[:, 0])
    assert high - low > 2 * (narrow[1] - narrow[0])


def test_throughput_up_to_a_knee():
    batches = [1, 2, 4, 8, 16, 32]
    speeds = [100 + 40 * min(np.log2(batch), 3) for batch in batches]
    law = Knee.fit(batches, speeds)
    assert law.knee == pytest.approx(8, rel=0.05) and law.b == pytest.approx(40, rel=0.02) and law.error < 0.01
    assert law.rate(4) == pytest.approx(180, rel=0.01) and law.rate(64) == law.rate(8.5)
