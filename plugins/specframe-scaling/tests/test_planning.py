"""Plans take what is fastest, and never leave the measured range without a word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import planted
import pytest

from specframe import InputError
from specframe_scaling.planning import Planner
from specframe_scaling.points import Passes, Results
from specframe_scaling.report import ScalingReport
from specframe_scaling.throughput import cycle_seconds, predict


@pytest.fixture(scope="module")
def report() -> ScalingReport:
    return ScalingReport(planted.results(7), choices=60)


def test_the_planned_tau_is_the_planted_one_and_its_interval_holds_it(report):
    choice = report.planner.plan((1, 512), 1e6, 1)
    truth = planted.tau(1e6, planted.SIZES[1, 512])
    assert choice.tau_interval[0] < choice.tau < choice.tau_interval[1]
    assert choice.depth < 3 or choice.tau == pytest.approx(truth, rel=0.1)
    assert choice.speedup_interval[0] < choice.speedup < choice.speedup_interval[1]


def test_no_other_size_or_depth_is_faster_than_the_best(report):
    planner = report.planner
    tokens = planner.within(600.0)
    best = planner.best(tokens, 1)
    for size in planted.SIZES:
        speed = planner.speed(size, 1)
        taus = planner.depths(size, tokens(size))[0]
        for depth in (1, 2, 3):
            assert best.speedup >= taus[depth - 1] * speed.plain_seconds / cycle_seconds(speed, depth) - 1e-12


def test_a_bigger_budget_never_plans_less_speed(report):
    speedups = [report.planner.best(report.planner.within(seconds), 1).speedup for seconds in (120, 600, 3000)]
    assert speedups == sorted(speedups)


def test_more_rows_gain_less_up_to_the_last_that_gains(report):
    choice = report.planner.plan((1, 512), 1e6, 1)
    gains = [report.planner.plan((1, 512), 1e6, batch).speedup for batch in report.planner.batches]
    assert gains == sorted(gains, reverse=True)
    last = report.planner.last_gain(choice)
    assert last is not None
    assert all((gain > 1) == (batch < last) for gain, batch in zip(gains, report.planner.batches, strict=True))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1200.0, "within the measured 50k to 5M tokens"), (1e6, "OUTSIDE the measured 50k to 5M tokens, by a factor of")],
)
def test_a_plan_gives_its_distance_from_the_measured(report, seconds, words):
    text = report.plan(seconds)
    assert words in text and "train" in text and "at batch 1" in text and "beyond batch" in text


@pytest.mark.parametrize(
    ("tokens", "words"), [(1e6, "within"), (5e7, "by a factor of 10.0"), (1e4, "by a factor of 5.0")]
)
def test_an_extrapolation_gives_its_distance(report, tokens, words):
    assert words in report.extrapolation(tokens)
    assert report.planner.plan((1, 512), tokens, 1).outside == pytest.approx(max(1.0, tokens / 5e6, 5e4 / tokens))


def test_no_budget_below_one_point(report):
    with pytest.raises(InputError, match="below one point: the smallest of the sweep, 50,000 tokens with 1 x 128"):
        report.plan(5.0)


def test_no_plan_without_times(report):
    bare = ScalingReport(Results(report.results.points), choices=5)
    with pytest.raises(InputError, match="no cycles with every size"):
        bare.plan(600.0)
    with pytest.raises(InputError, match="no cycles of 3 rows were timed with 1 x 512"):
        report.planner.plan((1, 512), 1e6, 3)


def test_other_laws_share_tau_over_depths_as_acceptances_are(report):
    linear = next(each.law for each in report.judged if each.law.name == "linear")
    taus = Planner(report.results, linear, report.planner.logit).depths((1, 512), 1e6)
    split = report.planner.logit.depths(*_place((1, 512), 1e6))[..., 0]
    assert taus[:, -1] == pytest.approx(linear.tau(*_place((1, 512), 1e6))[:, 0])
    assert (taus[:, 0] - 1) / (taus[:, -1] - 1) == pytest.approx((split[:, 0] - 1) / (split[:, -1] - 1))


def test_the_machine_s_times_of_passes_predict_a_speed_without_a_fit():
    speed = planted.speed((1, 512), 4)
    nodes = [1, 2, 4, 8, 16, 32]
    passes = Passes(nodes, [0.010 + 0.001 * n for n in nodes], {"1 x 512": 0.0005})
    draft = 0.0005 * 0.014 / 0.011
    assert passes.cost(40) == pytest.approx(0.05) and passes.cost(3) == pytest.approx(0.013)
    assert predict(passes, speed, 0.0002) == pytest.approx(4 * 2.0 / (0.05 + 3 * draft + 0.0002))
    assert cycle_seconds(speed, 3, passes) == pytest.approx(speed.target_seconds + 3 * speed.draft_seconds + 0.0002)
    cut = speed.target_seconds * passes.cost(16) / passes.cost(40)
    assert cycle_seconds(speed, 1, passes) == pytest.approx(cut + speed.draft_seconds + 0.0002)
    found = ScalingReport(
        replace(planted.results(7), passes=replace(passes, draft=dict.fromkeys(_names(), 0.0005))), choices=3
    )
    assert "by the times of passes, no fit" in found.throughput()


def _names():
    return [f"{layers} x {width}" for layers, width in planted.SIZES]


def _place(size, tokens):
    return np.array([tokens]), np.array([float(planted.SIZES[size])])
