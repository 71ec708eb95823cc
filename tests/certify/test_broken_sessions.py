"""Parts that are wrong in one place of a session's life, each refused without the recipe's own model."""

import pytest

from specframe.certify.certify import certify_plan
from specframe.certify.compositions.branches import HiddenState
from specframe.certify.recipe import certify_recipe
from specframe.kernel.errors import CompositionError, InputError
from tests.certify.recipes import COPIES, DRAWN, planned

RULES = ["FromOpening", "WrongWhereMixed", "GreedyWhereMixed", "FromCycle", "DisturbsFive", "DisturbsLastOfNine"]
MORE_RULES = [
    *("FromThirdOpening", "FirstSampling", "AfterThirtyTwo", "DisturbsNine", "SwapsAfterLeaving", "AfterAJoin"),
    *("AfterARowLeft", "MiddleRow", "RowOneOfSix", "CoolestRow"),
]
TREES = ["RowZeroOfFour", "LeavesByParity", "SharpensFromCycleSix", "SharpensAfterThirtyTwo", "SharpensTheFifth"]
TREES += ["DrawsFromTheLastSession"]
GREEDY = ["FollowsAndParent", "ParentFromCycleTwo"]
RIGHT = "KeepsFromOpen"


def plan(folder, name, kind="verifier", temperature=1.0):
    parts = {"tree": "chain", "verifier": "recursive", "depth": 2} | {kind: f"./broken.py:{name}"}
    text = DRAWN if kind == "tree" else COPIES
    code = "from tests.certify.broken_sessions import *\n"
    return planned(folder, text, code, temperature=temperature, **parts)


def refused(folder, name, kind="verifier", temperature=1.0):
    found = certify_plan(plan(folder, name, kind, temperature), budget=2000, seeds=1)
    return not found.lossless and not found.exact


@pytest.mark.parametrize("name", [*RULES, *(pytest.param(name, marks=pytest.mark.full) for name in MORE_RULES)])
def test_rules(name, tmp_path):
    assert refused(tmp_path, name)


@pytest.mark.full
@pytest.mark.parametrize("name", TREES)
def test_trees(name, tmp_path):
    assert refused(tmp_path, name, "tree")


@pytest.mark.parametrize("name", GREEDY)
def test_rules_that_follow_their_session_at_temperature_0(name, tmp_path):
    assert refused(tmp_path, name, temperature=0.0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["ParentAfterTwo", "GreedyFromCycleFive"])
def test_what_no_text_of_the_certificate_shows_at_temperature_0_is_probed(name, tmp_path):
    found = certify_plan(plan(tmp_path, name, temperature=0.0), budget=2000, seeds=1)
    assert not found.lossless and any("`verify` at temperature 0" in line for line in found.shortcuts)


@pytest.mark.full
def test_a_right_rule_with_a_memory_from_open_is_certified(tmp_path):
    assert certify_plan(plan(tmp_path, RIGHT), budget=8000, seeds=1).lossless


@pytest.mark.parametrize(("name", "field"), [("AsksTheSource", "_keys"), ("KnowsTheForks", "_scripts")])
def test_a_part_that_looks_into_its_random_source_is_refused(name, field, tmp_path):
    with pytest.raises(HiddenState, match=f"reads `{field}` of its random source"):
        certify_plan(plan(tmp_path, name), budget=300, seeds=1)


@pytest.mark.parametrize(("name", "problem"), [("WrongLength", "the length is"), ("PathOfAnother", ".* is not a path")])
def test_a_verdict_of_a_wrong_form_is_named_first(name, problem, tmp_path):
    with pytest.raises(CompositionError, match=rf"{name}\.verify gave no verdict: row 0: {problem}"):
        certify_plan(plan(tmp_path, name), budget=300, seeds=1)


def test_the_call_that_fails_is_named(tmp_path):
    with pytest.raises(InputError, match=r"in Unopened\.verify, at .*AttributeError") as error:
        certify_recipe(plan(tmp_path, "Unopened"), [], budget=300)
    assert "vocabulary" not in str(error.value)
