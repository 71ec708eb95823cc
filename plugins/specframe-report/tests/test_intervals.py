"""Intervals hold what they promise, against worlds whose truth is known."""

import numpy as np
import pytest

from specframe_report import intervals
from specframe_report.grid import Axes, Grid
from specframe_report.intervals import (
    Measure,
    Variance,
    estimate,
    estimate_change,
    median,
    student,
    variance_of_moment,
)
from specframe_report.measures import rate, speedup
from specframe_report.summary import RunSpan
from tests.bench.synthetic import Drift, World

BENCHES = 200


def measure(results, figure=speedup):
    axes = Axes.of(results["runs"], [prompt["id"] for prompt in results["prompts"]])
    grids = [Grid([run for run in results["runs"] if run["contestant"] == name], axes) for name in ("falcon", "plain")]
    return figure(*grids) if figure is speedup else figure(grids[0])


def holds(interval, truth):
    return interval.low <= truth <= interval.high


@pytest.fixture(scope="module")
def worlds():
    return [World(9, seed=seed) for seed in range(BENCHES)]


def test_the_interval_covers_the_truth_of_all_prompts(worlds):
    truth = World(20_000).truth
    found = [estimate(measure(world.bench(3, seed=i)), seed=i) for i, world in enumerate(worlds)]
    assert np.mean([holds(interval, truth) for interval in found]) >= 0.9
    # and is not merely wide: about what an oracle needs that knows the spread between benches
    widths = np.mean([np.log(interval.high / interval.low) / 2 for interval in found])
    assert widths < 2 * 1.96 * np.std([np.log(interval.value) for interval in found])


def test_a_second_run_agrees_with_the_first(worlds):
    """Two runs of one bench on a noisy machine, each within the interval of the other."""
    agree, unchanged = [], []
    for i, world in enumerate(worlds[:50]):
        first, second = (measure(world.bench(3, seed=seed, load=0.02)) for seed in (2 * i, 2 * i + 1))
        one, other = estimate(first, i), estimate(second, i)
        agree.append(holds(one, other.value) and holds(other, one.value))
        unchanged.append(holds(estimate_change(first, second, i)[2], 1.0))
    assert np.mean(agree) >= 0.9
    assert np.mean(unchanged) >= 0.9


def test_a_drifting_machine_does_not_pass_for_a_change_of_speed(worlds):
    """Tokens per second do follow the machine: a naive interval over prompts finds changes everywhere."""
    unchanged = []
    for i, world in enumerate(worlds[:50]):
        first, second = (measure(world.bench(4, seed=seed, drift=0.1), rate) for seed in (2 * i, 2 * i + 1))
        unchanged.append(holds(estimate_change(first, second, i)[2], 1.0))
    assert np.mean(unchanged) >= 0.9


@pytest.fixture(scope="module")
def pairs():
    """Two short benches of each world, 2 or 10 minutes apart, on a machine that drifts for minutes."""
    found = []
    for i in range(30):
        world, start = World(6, seed=i), (120, 600)[i % 2]
        slow, wide = Drift(0.1, memory=90, seed=2 * i), Drift(0.06, memory=90, seed=2 * i + 1)
        found.append([world.drifting_bench(slow, wide, start * k, seed=2 * i + k) for k in (0, 1)])
    return found


def judge(pairs, figure):
    """In how many pairs a figure lies in the other's interval, and how often no change is found."""
    agree, unchanged = [], []
    for old, new in pairs:
        measures = [measure(bench, figure) for bench in (old, new)]
        one, other = map(estimate, measures)
        agree += [holds(one, other.value), holds(other, one.value)]
        spans = [RunSpan.of(bench) for bench in (old, new)]
        unchanged.append(holds(estimate_change(*measures, apart=spans[0].distance(spans[1]) / spans[0].seconds)[2], 1))
    return np.mean(agree), np.mean(unchanged)


@pytest.mark.parametrize(("figure", "least"), [(speedup, 0.92), (rate, 0.8)])
def test_short_benches_minutes_apart_on_a_drifting_machine_agree(pairs, figure, least):
    agree, unchanged = judge(pairs, figure)
    assert agree >= least  # the machine's own speed is what half a minute measures worst
    assert unchanged >= 0.9


def test_loads_taken_for_independent_would_find_changes_where_none_are(pairs, monkeypatch):
    """The control: what the spread of the mean of repeats would claim."""
    monkeypatch.setattr(
        intervals, "variance_of_moment", lambda m, kept, times: variance_of_moment(m, kept, 1 / m.repeats)
    )
    assert judge(pairs, speedup)[1] < 0.87
    assert judge(pairs, rate)[1] < 0.75


def test_the_variance_of_a_moment_is_the_spread_of_repeats():
    """With three repeats the middle one is many a prompt's median: shifts from that would be underrated."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(100):
        logs = random.normal(0, 0.1, (1, 3)) + random.normal(0, 0.1, (12, 3))
        found += variance_of_moment(fixed(np.exp(logs)), np.ones(12, dtype=bool), 2.0)
    assert {source.freedom for source in found} == {4}  # two stretches
    assert 2 * 0.1**2 < np.mean([source.variance for source in found]) < 2 * 0.1**2 * 1.4
    assert variance_of_moment(fixed(np.ones((3, 1))), np.ones(3, dtype=bool), 1.0) == [Variance(0.0, 0)]


def test_a_real_change_is_found():
    found = []
    for i in range(30):
        world = World(12, seed=i)
        old, new = (measure(world.bench(5, seed=2 * i + k, noise=0.02, faster=1 + 0.1 * k)) for k in (0, 1))
        found.append(estimate_change(old, new, i)[2].low > 1)
    assert np.mean(found) > 0.9


@pytest.mark.parametrize(("left_out", "within"), [(True, True), (False, False)])
def test_plain_against_plain_is_within_three_percent_whatever_others_do(left_out, within):
    """On a machine that other processes have most of the time: what they took is known, and left out."""
    widths = []
    for seed in range(20):
        bench, waits = (
            World(12, speedup=1.0, sigma=0.0).bench(3, seed, 0.01, load=0.0, hiccups=0),
            np.random.default_rng(seed),
        )
        for each in bench["runs"]:
            waited = each["seconds"] * waits.exponential(3.0)
            each["seconds"] += waited
            each["waited_seconds"] = waited if left_out else None
        found = estimate(measure(bench))
        assert holds(found, 1.0) or not left_out
        widths.append(found.high / found.value - 1)
    assert (np.median(widths) < 0.03) == within


def test_equal_seeds_give_equal_intervals():
    one = measure(World(6).bench(3))
    assert estimate(one, 4) == estimate(one, 4)
    assert estimate(one, 4) != estimate(one, 5)


def test_too_few_repeats_give_no_bounds():
    assert estimate(fixed(np.ones((1, 5)))).low is None
    assert estimate(fixed(np.ones((3, 1)))).low is None
    assert estimate(fixed(np.ones((3, 1)), timed=False)).low == 1
    assert estimate(fixed(np.zeros((3, 5)))) is None


@pytest.mark.parametrize(("prompts", "bounded"), [(2, False), (3, True)])
def test_two_prompts_give_no_bounds_for_their_difference_is_one_number(prompts, bounded):
    """One degree of freedom would put a speedup of 1 between 0 and millions."""
    found = estimate(fixed(np.array([[0.5], [2.0], [1.0]])[:prompts] * np.ones(5)))
    assert (found.low is not None) == bounded == (found.high is not None)
    assert not bounded or 0.1 < found.low < found.value < found.high < 10


def test_two_repeats_that_differ_more_than_the_prompts_give_no_bounds():
    assert estimate(fixed(np.array([[1.0, 2.0]] * 3))).low is None
    assert estimate(fixed(np.array([[1.0, 2.0]] * 3), timed=False)).low is not None
    assert estimate(fixed(np.array([[1.0, 2.0, 1.5]] * 3))).low is not None


def fixed(cells, timed=True):
    """The mean of some cells, prompts x repeats."""

    def totals(picks):
        above = np.take_along_axis(cells[None], picks, -1).mean(-1)
        return above, np.ones_like(above)

    return Measure(totals, *cells.shape, timed)


@pytest.mark.parametrize(("freedom", "point"), [(1, 12.706), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)])
def test_student_has_the_tables_values(freedom, point):
    assert student(freedom) == pytest.approx(point, abs=2e-3)
    assert student(freedom) > student(freedom + 0.5) > student(freedom + 1)


def test_the_median_leaves_out_what_is_missing():
    rows = np.array([[3.0, 1.0, 2.0], [4.0, np.nan, 2.0], [np.nan, 7.0, np.nan], [np.nan] * 3])
    assert median(rows)[:3].tolist() == [2.0, 3.0, 7.0]
    assert np.isnan(median(rows)[3])
