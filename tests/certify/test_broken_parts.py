"""Parts that are wrong in one place only, each refused by a certificate without the recipe's own model."""

import re
from pathlib import Path

import pytest

from specframe.certify.certify import certify_plan
from specframe.certify.compositions.shortcuts import FIELDS, check_search
from specframe.certify.compositions.small import SmallComposition
from specframe.cli.render.certificate import verdict
from specframe.native.draft import NativeDraft
from tests.certify.recipes import COPIES, DRAWN, planned
from tests.neural.test_growth import SPOILED

PATH = "./broken.py:"
QUICK = ["EveryThird", "AsksTheParent", "FairBonus"]
SLOW = ["AtFive", "TakesAnyChildDeepDown", "SecondCycle", "AfterTheFirstPath"]
COPYING = [*QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in SLOW)]
DEPTHS = {"ForRows": 2, "ForThree": 2, "ForFive": 1, "ForEight": 1, "LastOfSeveral": 2, "RecursiveDeep": 5}
DRAWING = [
    ("AsksTooLittle", 3),
    *(pytest.param(name, depth, marks=pytest.mark.full) for name, depth in DEPTHS.items()),
]
GREEDY = ["FollowsRoot", "FollowsTooFar", "FollowsBlindly", "TakesRoot", "KSeqParent", "TransportParent"]
TREES = ["DrawsTheLikeliest", "RecordsTheParents"]
OBSERVING = ["SharpensLate", "ForgetsRows"]


FEW = {COPIES: 300, DRAWN: 120}
"""Branches of a case that are enough to find each of them out; the sound parts are certified with more."""


def certified(folder, text, **parts):
    return _certified(folder, text, 8000, parts).lossless


def refused(folder, text, **parts):
    """True where a case or temperature 0 is off; a certificate that is not lossless may only be unfinished."""
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
@pytest.mark.parametrize("name", TREES)
def test_trees_that_record_another_distribution_deep_down(name, tmp_path):
    parts = {"tree": PATH + name, "verifier": "recursive", "depth": 5, "temperature": 1.0}
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
def test_rules_that_are_wrong_at_temperature_0(name, tmp_path):
    assert refused(tmp_path, DRAWN, tree="chain", verifier=PATH + name, depth=3, temperature=0.0)


@pytest.mark.full
@pytest.mark.parametrize("rule", ["match", "recursive", "block", "traversal"])
def test_the_rules_that_they_spoil_are_certified(rule, tmp_path):
    assert certified(tmp_path, DRAWN, tree="chain", verifier=rule, depth=2, temperature=1.0)


NATIVE = """
specframe: 1
target: {use: table}
drafter: {use: eagle, quantize: int8, head: {use: trimmed, keep: 2, quantize: int8}}
tree: {use: dynamic, depth: 4, width: 2, nodes: 8}
verifier: match
sampling: {temperature: 0.0}
"""


@pytest.fixture
def spoil(monkeypatch):
    """Makes native searches whose deepest node is wrong in a field where they are of one row; None: in no field."""
    grow, grown = NativeDraft.grow, []

    def enter(field):
        def spoiled(*parts, **options):
            tree, passes = grow(*parts, **options)
            grown.append(tree)
            wrong = field is not None and len(tree.tokens) == 1
            return SPOILED[field](tree, tree.depth.argmax(1)) if wrong else tree, passes

        monkeypatch.setattr(NativeDraft, "grow", spoiled)
        return grown

    return enter


@pytest.mark.parametrize("field", [None, *SPOILED])
def test_native_searches(field, spoil, tmp_path):
    grown = spoil(field)
    found = check_search(SmallComposition.of(planned(tmp_path, NATIVE, "")))
    assert {len(tree.tokens) for tree in grown} == {1, 2} and max(tree.levels for tree in grown) == 4
    assert any(FIELDS[field] in line for line in found) if field else found == []


@pytest.mark.parametrize("field", [None, "parent"])
def test_a_native_search_of_other_parents_is_refused(field, spoil, tmp_path):
    spoil(field)
    certificate = certify_plan(planned(tmp_path, NATIVE, ""), budget=300, seeds=1)
    named = "the drafter's native search: other parents" in verdict(certificate.as_dict())
    assert certificate.exact != named == (field is not None)


def test_the_table_names_every_part_and_its_test():
    folder = Path(__file__).parent
    rows = re.findall(r"^\| `(\w+)`.* \| `(\w+\.py)` \|$", (folder / "README.md").read_text(encoding="utf-8"), re.M)
    assert all(re.search(rf"\b{name}\b", (folder / file).read_text(encoding="utf-8")) for name, file in rows)
    drawing = [getattr(case, "values", case)[0] for case in DRAWING]
    here = {name for name, file in rows if file == Path(__file__).name}
    assert here == {*QUICK, *SLOW, *drawing, *GREEDY, *OBSERVING, *TREES}
