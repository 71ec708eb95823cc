"""Parts that are wrong in one place only, each refused by a certificate without the recipe's own model."""

import re
from pathlib import Path

import pytest

from specframe.certify.certify import certify_plan
from tests.certify.recipes import COPIES, DRAWN, planned

PATH = "./broken.py:"
QUICK = ["EveryThird", "AsksTheParent", "UnlikeItsAskingForm"]
SLOW = ["AtFive", "TakesAnyChildDeepDown", "SecondCycle", "AfterTheFirstPath"]
COPYING = [*QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in SLOW)]
DRAWING = [
    ("AsksTooLittle", 3),
    *(
        pytest.param(name, depth, marks=pytest.mark.full)
        for name, depth in {"ForRows": 2, "ForThree": 2, "LastOfSeveral": 2, "RecursiveDeep": 5}.items()
    ),
]
GREEDY = ["FollowsRoot", "FollowsTooFar", "FollowsBlindly"]
OBSERVING = ["SharpensLate", "ForgetsRows"]


FEW = {COPIES: 300, DRAWN: 120}
"""Branches of a case that are enough to find each of them out; the sound parts are certified with more."""


def certified(folder, text, **parts):
    return _certified(folder, text, 8000, parts).lossless


def refused(folder, text, **parts):
    """True where a case or a fast path is off; a certificate that is not lossless may only be unfinished."""
    found = _certified(folder, text, FEW[text], parts)
    return not found.lossless and not found.exact


def _certified(folder, text, budget, parts):
    broken = "from tests.certify.broken_parts import *\n"
    return certify_plan(planned(folder, text, broken, **parts), budget=budget, seeds=1)


@pytest.mark.parametrize("name", COPYING)
def test_rules_over_copies(name, tmp_path):
    assert refused(tmp_path, COPIES, verifier=PATH + name, temperature=1.0)


@pytest.mark.parametrize(("name", "depth"), DRAWING)
def test_rules_over_drawn_trees(name, depth, tmp_path):
    assert refused(tmp_path, DRAWN, tree="chain", verifier=PATH + name, depth=depth, temperature=1.0)


@pytest.mark.full
def test_a_tree_that_takes_the_likeliest_deep_down(tmp_path):
    parts = {"tree": PATH + "DrawsTheLikeliest", "verifier": "recursive", "depth": 5, "temperature": 1.0}
    assert refused(tmp_path, DRAWN, **parts)


@pytest.mark.full
@pytest.mark.parametrize("name", OBSERVING)
def test_trees_that_observe_cycles(name, tmp_path):
    parts = {"tree": PATH + name, "verifier": "recursive", "depth": 2, "temperature": 1.0}
    assert refused(tmp_path, DRAWN, **parts)


@pytest.mark.full
def test_a_tree_that_moves_its_rows_is_certified(tmp_path):
    parts = {"tree": PATH + "KeepsRows", "verifier": "recursive", "depth": 2, "temperature": 1.0}
    assert certified(tmp_path, DRAWN, **parts)


@pytest.mark.full
@pytest.mark.parametrize("name", GREEDY)
def test_fast_paths_of_other_rules(name, tmp_path):
    assert refused(tmp_path, DRAWN, tree="chain", verifier=PATH + name, depth=3, temperature=0.0)


@pytest.mark.full
@pytest.mark.parametrize("rule", ["match", "recursive", "block", "traversal"])
def test_the_rules_that_they_spoil_are_certified(rule, tmp_path):
    assert certified(tmp_path, DRAWN, tree="chain", verifier=rule, depth=2, temperature=1.0)


def test_the_table_names_every_part_and_its_test():
    folder = Path(__file__).parent
    rows = re.findall(r"^\| `(\w+)`.* \| `(\w+\.py)` \|$", (folder / "README.md").read_text(encoding="utf-8"), re.M)
    assert all(re.search(rf"\b{name}\b", (folder / file).read_text(encoding="utf-8")) for name, file in rows)
    drawing = [getattr(case, "values", case)[0] for case in DRAWING]
    here = {name for name, file in rows if file == Path(__file__).name}
    assert here == {*QUICK, *SLOW, *drawing, *GREEDY, *OBSERVING, "DrawsTheLikeliest"}
