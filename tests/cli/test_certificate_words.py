"""The last line of a certificate takes both of its halves into account."""

import pytest

from specframe.certify.real import GreedyReport, RealReport, SampledReport
from specframe.cli.printing.certificate import print_certificate, verdict

CASE = {
    "name": "temperature 1, target 0",
    "tv": 1e-17,
    "first_token_tv": 0.0,
    "exhausted": True,
    "branches": 9,
    "mass": 1.0,
    "side_by_side": True,
    "reduced": [],
    "worst_sequence": [1],
    "wanted": 0.5,
    "got": 0.5,
}
GREEDY = GreedyReport(1, 9, (), 1e-6, 0.1, 0.4)


def certificate(p_value: float, control: float) -> dict:
    sampled = SampledReport(1.0, 128, 3, p_value, 0.001, control)
    return {
        "lossless": True,
        "promised": True,
        "tv": 1e-17,
        "branches": 9,
        "control_failed": True,
        "interrupted": False,
        "cases": [CASE],
        "controls": [],
        "audit": [],
        "real": RealReport(GREEDY, sampled).as_dict(),
    }


@pytest.mark.parametrize(
    ("p_value", "control", "words", "last"),
    [
        (0.4, 0.0005, "no difference", "lossless: 9 branches"),
        (0.4, 0.096, "not shown by sampling", "lossless: 9 branches"),
        (0.0005, 0.0005, "DIFFERENT", "not lossless on the recipe's own model"),
    ],
)
def test_sampling_counts_in_the_verdict_and_is_marked_when_it_shows_nothing(p_value, control, words, last, capsys):
    found = certificate(p_value, control)
    print_certificate(found, "falcon.yaml")
    output = " ".join(capsys.readouterr().out.split())
    assert words in output and verdict(found).startswith(last) and last.split(":")[0] in output


def test_rows_that_would_not_run_side_by_side_are_named(capsys):
    found = certificate(0.4, 0.0005)
    found["cases"] = [
        CASE | {"side_by_side": False},
        CASE | {"name": "temperature 1, among other rows", "side_by_side": False},
    ]
    print_certificate(found, "falcon.yaml")
    assert "changed each other's draws in 1 cases" in " ".join(capsys.readouterr().out.split())
