"""The tiers of the suite: two that share no test and together run all within days, the same again for the same day."""

from collections import Counter
from datetime import date, timedelta

import pytest
from hypothesis import settings

from tests import tiers
from tests.repo.repository import ROOT

SUITE = """
import pytest

@pytest.mark.parametrize("case", range(20))
def test_plain(case):
    pass

@pytest.mark.full
def test_full():
    pass

@pytest.mark.sampled
@pytest.mark.parametrize("case", range(100))
def test_sampled(case):
    pass

@pytest.mark.full
@pytest.mark.slow
def test_slow():
    pass
"""
TODAY = date(2026, 3, 1)


@pytest.fixture
def collected(pytester):
    """The names of the tests that a command line collects from the suite above."""
    pytester.makepyfile(SUITE)
    pytester.makeini("[pytest]\nmarkers = full: not quick\n    sampled: in turn\n    slow: very")
    profile = settings.get_current_profile_name()

    def collect(*arguments):
        run = pytester.inline_run("--collect-only", "-p", "tests.tiers", *arguments)
        assert run.ret == 0
        return [item.name for item in run.getcalls("pytest_collection_modifyitems")[0].items]

    yield collect
    settings.load_profile(profile)


def test_the_quick_tier_and_the_rest_are_the_suite_but_for_later_cases(collected):
    day = f"--day={TODAY}"
    quick, rest, whole = collected(day, "-m not slow"), collected(day, "--rest", "-m not slow"), collected("--all")
    assert len(whole) == len(set(whole)) == 122 and not set(quick) & set(rest)
    assert all("sampled" in name for name in set(whole) - {*quick, *rest, "test_slow"})
    assert sum("plain" in name for name in quick) == 20 and "test_full" in rest
    assert "test_sampled[0]" in quick and sum("sampled" in name for name in quick) in range(3, 30)


def test_five_days_run_every_case(collected):
    days = [f"--day={TODAY + timedelta(days=number)}" for number in range(5)]
    runs = [name for day in days for tier in ((), ("--rest",)) for name in collected(day, "-k sampled", *tier)]
    assert len(set(runs)) == 100 and len(runs) < 120


def test_a_slow_test_is_left_to_the_rest(collected, monkeypatch):
    [name] = [name for name in collected("--all", "-k plain") if "[0]" in name]
    file = "test_a_slow_test_is_left_to_the_rest.py"
    monkeypatch.setattr(tiers, "SLOW", {f"{file}::{name}"})
    assert name not in collected() and name in collected("--rest")


def test_slow_tests_are_there():
    """A test that is renamed is quick again, until all are measured the next time."""
    assert tiers.SLOW
    for name in tiers.SLOW:
        file, function = name.partition("[")[0].split("::")[0], name.partition("[")[0].rpartition("::")[2]
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_a_day_can_be_repeated_and_ten_days_have_every_case(collected):
    days = [f"--day={TODAY + timedelta(days=number)}" for number in range(10)]
    runs = [collected(day, "-k sampled") for day in days]
    assert collected(days[0], "-k sampled") == runs[0]
    found = Counter(name for run in runs for name in run)
    assert found.pop("test_sampled[0]") == 10 and len(found) == 99 and set(found.values()) == {1}


def test_slow_tests_and_those_that_are_named_run_on_any_day(collected, pytester):
    [file] = pytester.path.glob("test_*.py")
    assert collected("-m slow") == ["test_slow"]
    assert collected(f"{file.name}::test_full") == ["test_full"]


def test_the_header_shows_how_to_repeat_it(pytester):
    profile = settings.get_current_profile_name()
    pytester.makepyfile("def test(): pass")
    output = pytester.runpytest_inprocess("-p", "tests.tiers", f"--day={TODAY}").stdout.str()
    settings.load_profile(profile)
    assert "tier: quick, as of --day 2026-03-01" in output


@pytest.mark.parametrize(("arguments", "examples"), [((), 15), (("--rest",), 30), (("--all",), 30)])
def test_a_tier_has_a_profile_of_hypothesis(arguments, examples, collected):
    collected(*arguments)
    assert settings().max_examples == examples


def test_what_is_no_day_is_refused(pytester):
    refused = pytester.runpytest_inprocess("-p", "tests.tiers", "--day=tomorrow")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "argument --day" in refused.stderr.str()
