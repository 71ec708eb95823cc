"""Tests of counts notice what is off, and refuse nothing that is not."""

from collections import Counter
from math import exp, inf

import numpy as np
import pytest
from scipy import stats

from specframe_against.fit import LEVEL, POWER, fit_counts, fit_ranks

LAW = {"a": 0.6, "b": 0.3, "c": 0.0999, "d": 0.0001}


def draw(law, samples, seed=0):
    drawn = np.random.default_rng(seed).choice(list(law), samples, p=list(law.values()))
    return Counter(drawn.tolist())


def test_counts_are_scipys_g_test():
    """Of the outcomes that are expected five times; the others belong to the rarest of them."""
    counts = draw(LAW, 1000)
    fit = fit_counts(counts, LAW)
    got = [counts["a"], counts["b"], counts["c"] + counts["d"]]
    wanted = stats.power_divergence(got, [600, 300, 100], lambda_="log-likelihood")
    assert (fit.freedom, fit.samples) == (2, 1000)
    assert fit.statistic == pytest.approx(wanted.statistic)
    assert fit.p == pytest.approx(wanted.pvalue)
    assert not fit.refused


def test_an_outcome_without_probability_is_refused():
    """Once is enough, and all figures stay finite."""
    fit = fit_counts(Counter(a=700, b=300, c=1), {"a": 0.7, "b": 0.3, "c": 0.0})
    assert fit.refused
    assert fit.worst is None and fit.got == 1 and fit.statistic < inf


def test_one_outcome_shows_nothing():
    fit = fit_counts(Counter(a=1000), {"a": 1.0})
    assert (fit.freedom, fit.p, fit.detectable) == (0, 1.0, None)


@pytest.mark.parametrize("kind", ["counts", "ranks"])
def test_what_is_detectable_is_noticed(kind):
    """A distribution that is off by as much is refused in nearly all of a hundred samples, and half of it in fewer."""
    samples = 4000
    detectable = fit_counts(draw(LAW, samples), LAW).detectable

    def share_refused(off):
        moved = LAW | {"a": LAW["a"] - off, "b": LAW["b"] + off}
        return np.mean([refuses(kind, draw(moved, samples, seed)) for seed in range(100)])

    assert share_refused(detectable) >= POWER - 0.02
    assert share_refused(detectable / 3) < 0.5
    assert share_refused(0) == 0, f"of 100, at a level of {LEVEL}"


def refuses(kind, counts):
    if kind == "counts":
        return fit_counts(counts, LAW).refused
    ranks = [list(LAW).index(token) for token in counts.elements()]
    laws = np.tile(list(LAW.values()), (len(ranks), 1))
    return fit_ranks(ranks, laws).refused


def test_ranks_have_the_exact_covariance_of_unlike_draws():
    """Half of the draws are certain: a statistic that took all for alike would be half as large."""
    count, dice = 2000, np.random.default_rng(0)
    laws = np.array([[1.0, 0.0]] * count + [[0.5, 0.5]] * count)
    statistics = []
    for _ in range(400):
        ranks = [*np.zeros(count, int), *dice.integers(0, 2, count)]
        statistics.append(fit_ranks(ranks, laws).statistic)
    assert np.mean(statistics) == pytest.approx(1, abs=0.2), "chi-squared with one degree of freedom"


def test_ranks_that_are_rare_are_counted_together():
    laws = np.array([[0.7, 0.28, 0.01, 0.005, 0.005]] * 300)
    fit = fit_ranks([0] * 210 + [1] * 84 + [4] * 6, laws)
    assert (fit.freedom, fit.statistic) == (2, pytest.approx(0, abs=1e-9))
    assert fit.p == pytest.approx(exp(0))
