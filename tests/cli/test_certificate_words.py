"""The last line of a certificate takes both of its halves into account."""

import pytest

from specframe.certify.compositions.enumeration import EnumerationProgress
from specframe.certify.real import GreedyReport, RealReport, SampledReport
from specframe.cli.render.certificate import print_certificate, progress_shown, verdict

CASE = {
    "name": "temperature 1, target 0",
    "tv": 1e-17,
    "first_token_tv": 0.0,
    "exhausted": True,
    "branches": 9,
    "mass": 1.0,
    "side_by_side": True,
    "reduced": [],
    "tokens": 4,
    "forced": 0,
    "worst_sequence": [1],
    "wanted": 0.5,
    "got": 0.5,
}
GREEDY = GreedyReport((), 1, 9, 1e-6, 0.1, 0.4)


def certificate(p_value: float, control: float) -> dict:
    sampled = SampledReport(1.0, 128, 3, p_value, 0.001, control)
    return {
        "lossless": True,
        "composed": True,
        "approximate": False,
        "distance": None,
        "promised": True,
        "tv": 1e-17,
        "branches": 9,
        "control_failed": True,
        "batches": True,
        "accepting": True,
        "levels": 3,
        "cycles": 4,
        "smaller": [],
        "shortcuts": [],
        "weights_unread": [],
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
        (0.4, 0.096, "not shown by sampling, the control went unnoticed", "lossless: 9 branches"),
        (0.0005, 0.0005, "DIFFERENT", "not lossless on the recipe's own model"),
    ],
)
def test_sampling_counts_in_the_verdict_and_is_marked_when_it_shows_nothing(p_value, control, words, last, capsys):
    found = certificate(p_value, control)
    print_certificate(found, "falcon.yaml")
    output = " ".join(capsys.readouterr().out.split())
    assert words in output and verdict(found).startswith(last) and last.split(":")[0] in output
    assert verdict(found).endswith("not shown by sampling on the recipe's own model") == (control > 0.001)


def test_a_lossy_rule_is_measured_on_the_recipe_s_own_model(capsys):
    found = certificate(0.4, 0.0005) | {"departure": {"tokens": 400, "others": 0.1234, "nats": 0.0567}}
    print_certificate(found, "judge.yaml")
    output = " ".join(capsys.readouterr().out.split())
    assert "of 400 tokens, 12.3% are not the target's choice; a token loses 0.057 nats on average" in output


def test_rows_that_would_not_run_side_by_side_are_named(capsys):
    found = certificate(0.4, 0.0005)
    found["cases"] = [
        CASE | {"side_by_side": False},
        CASE | {"name": "temperature 1, among other rows", "side_by_side": False},
    ]
    print_certificate(found, "falcon.yaml")
    assert "changed each other's draws in 2 cases" in " ".join(capsys.readouterr().out.split())
    print_certificate(
        found | {"lossless": False, "composed": False, "exhausted": False, "batches": False}, "falcon.yaml"
    )
    output = " ".join(capsys.readouterr().out.split())
    assert "nothing is shown for rows of one batch" in output and "not shown: no difference was found" in output


def test_a_case_of_two_tokens_is_named(capsys):
    found = certificate(0.4, 0.0005)
    found["cases"] = [CASE | {"tokens": 2}]
    print_certificate(found, "falcon.yaml")
    assert "two tokens only are compared in 1 case:" in " ".join(capsys.readouterr().out.split())


def test_a_smaller_tree_is_named_in_the_verdict():
    found = certificate(0.4, 0.0005) | {"real": None, "cases": [CASE | {"forced": 0, "tokens": 3}]}
    assert verdict(found).endswith("3 tokens from the start, to level 3, 4 cycles")
    assert verdict(found | {"smaller": ["depth 5 -> 3"]}).endswith("4 cycles; of a smaller tree: depth 5 -> 3")


def test_a_failure_is_printed_before_what_was_not_run():
    found = certificate(0.4, 0.0005) | {
        "lossless": False,
        "composed": False,
        "tv": 0.2,
        "control_failed": None,
        "real": None,
    }
    assert verdict(found) == "not lossless: total variation 0.2"
    assert verdict(found | {"tv": 0.0, "control_failed": True}).startswith("not shown")


def test_a_budget_that_ends_before_the_control_fails_is_named():
    found = certificate(0.4, 0.0005) | {
        "lossless": False,
        "composed": False,
        "tv": 0.0,
        "control_failed": False,
        "real": None,
    }
    assert "raise --budget" in verdict(found | {"exhausted": False})
    assert "broken on purpose" in verdict(found | {"exhausted": True})
    unfinished = CASE | {"tv": 0.0, "exhausted": False}
    assert "raise --budget" in verdict(found | {"exhausted": True, "controls": [unfinished]})
    assert "broken on purpose" in verdict(found | {"exhausted": True, "controls": [unfinished | {"exhausted": True}]})


def test_where_there_is_no_terminal_progress_is_lines(capsys):
    with progress_shown(quiet=False) as listener:
        for name, seconds in (("one", 0.0), ("one", 1.0), ("one", 30.0), ("two", 0.0)):
            listener(name, EnumerationProgress(int(seconds), 0.5, seconds))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["one: 0 branches, 50 %", "one: 30 branches, 50 %", "two: 0 branches, 50 %"]
