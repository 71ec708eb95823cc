import pytest

from specframe.kernel.errors import InputError
from specframe_report.prediction import predicted_speedup, predicted_speedup_by_weights


def test_equation_1_is_corals_own_example():
    # Llama3-8B: a draft forward takes a tenth of a target's, six are made, and 60 nodes take 31 instead of 26 ms.
    predicted = predicted_speedup(4.90, target_seconds=26, scoring_seconds=31, drafter_seconds=2.6, steps=6)
    assert 4.90 / predicted == pytest.approx(0.6 + 31 / 26)
    assert round(4.90 / predicted, 1) == 1.8


def test_equation_1_is_what_a_cycle_costs():
    # Ten tokens by plain decoding take 10 x 3 s, and two cycles of five tokens 2 x (4 x 0.5 + 3.5) s.
    predicted = predicted_speedup(5, target_seconds=3, scoring_seconds=3.5, drafter_seconds=0.5, steps=4)
    assert predicted == pytest.approx(30 / 11)


def test_a_drafter_without_forwards_has_no_steps():
    assert predicted_speedup(2, target_seconds=1, scoring_seconds=1, drafter_seconds=0, steps=0) == 2


def test_equation_6_is_equation_1_where_latency_is_proportional_to_size():
    by_weights = predicted_speedup_by_weights(4, target_weights=800, drafter_weights=80, steps=6)
    by_time = predicted_speedup(4, target_seconds=8, scoring_seconds=8, drafter_seconds=0.8, steps=6)
    assert by_weights == pytest.approx(by_time) == pytest.approx(4 / 1.6)


@pytest.mark.parametrize(
    "wrong", [{"scoring_seconds": 0.0, "steps": 0}, {"steps": -1}, {"drafter_seconds": float("nan")}]
)
def test_times_that_cannot_be_are_refused(wrong):
    times = {"target_seconds": 1.0, "scoring_seconds": 1.0, "drafter_seconds": 0.1, "steps": 2} | wrong
    with pytest.raises(InputError):
        predicted_speedup(3, **times)


def test_a_target_without_weights_is_refused():
    with pytest.raises(InputError):
        predicted_speedup_by_weights(3, target_weights=0, drafter_weights=1, steps=1)
