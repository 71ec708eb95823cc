"""Counter-examples: the branch that shows an error, drawn as a tree, and the line of the part that decided."""

import json

import pytest

from specframe.certify.certify import certify_plan
from specframe.cli.main import main
from specframe.kernel.types import Draw
from tests.certify.recipes import COPIES, DRAWN, planned
from tests.certify.test_certify import BROKEN
from tests.certify.test_certify import SAMPLED as FALCON

CARELESS = FALCON.replace("verifier: recursive", "verifier: ./broken.py:Careless")
ODD = """
from dataclasses import replace

from specframe.components.verifiers.match import Match


class Odd(Match):
    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        return replace(found, bonus=found.bonus * 0)
"""
TREE = """
from dataclasses import replace

from specframe.components.trees.fixed import Chain


class Flat(Chain):
    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return tree if tree.q is None else replace(tree, q=tree.q * 0 + 1 / tree.q.shape[-1])
"""


def example(folder, text, code, **parts):
    parts = {"depth": 2, "temperature": 1.0} | parts
    found = certify_plan(planned(folder, text, code, **parts), budget=2000, seeds=1)
    assert not found.exact
    return found.counterexample


def written(folder, text):
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def line_of(code, text):
    return 1 + next(number for number, line in enumerate(code.splitlines()) if text in line)


def test_it_names_the_draw_and_the_line_that_decided(tmp_path):
    found = example(tmp_path, CARELESS, BROKEN)
    bonus = line_of(BROKEN, "bonus=random.categorical(law)")
    assert (found.decided.call, found.decided.file, found.decided.line) == ("Careless.verify", "broken.py", bonus)
    assert found.got > found.wanted + 1e-6
    assert [drawn.place.call for drawn in found.draws][-1] == "Careless.verify"
    assert found.draws[-1].option == found.token == found.cycle.bonus.token
    assert found.draws[-1].law[found.token] > 0 and sum(found.draws[-1].law) == pytest.approx(1)


def test_its_tree_is_the_cycle_that_emits_the_token(tmp_path):
    found = example(tmp_path, CARELESS, BROKEN)
    texts = [(*(cycle.nodes[node].token for node in cycle.path), cycle.bonus.token) for cycle in found.trace.cycles]
    emitted = [token for text in texts for token in text]
    assert tuple(emitted[: len(found.before) + 1]) == (*found.before, found.token)
    assert len(emitted) - len(texts[-1]) <= len(found.before)
    at = len(found.before) - (len(emitted) - len(texts[-1]))
    assert found.node == (0, *found.cycle.path)[at]
    children = [node for node in found.cycle.nodes if node.parent == found.node and node.token == found.token]
    if children:
        assert children[0].p == pytest.approx(found.wanted)
    elif at == len(found.cycle.path):
        assert found.cycle.bonus.p == pytest.approx(found.wanted)


def test_a_rule_that_draws_nothing_is_named_by_its_beginning(tmp_path):
    found = example(tmp_path, COPIES, ODD, verifier="./broken.py:Odd")
    assert found.decided.call == "Odd.verify" and found.decided.line == line_of(ODD, "def verify") and found.token == 0


def test_of_a_wrong_record_the_draw_of_the_tree_is_shown(tmp_path):
    found = example(tmp_path, DRAWN, TREE, tree="./broken.py:Flat", verifier="recursive")
    assert "Flat.grow" in {drawn.place.call for drawn in found.draws}
    assert any(node.draw == Draw.IID.name.lower() and node.q == pytest.approx(1 / 3) for node in found.cycle.nodes)


@pytest.mark.parametrize(
    "name", ["FromOpening", *(pytest.param(name, marks=pytest.mark.full) for name in ("WrongWhereMixed", "FromCycle"))]
)
def test_a_row_among_others_is_drawn_alone(name, tmp_path):
    code = "from tests.certify.broken_sessions import *\n"
    found = example(tmp_path, COPIES, code, verifier=f"./broken.py:{name}")
    assert found.decided.call == f"{name}.verify" and found.decided.file in {"broken_parts.py", "match.py"}
    assert found.got > found.wanted and found.cycle.nodes[0].verdict == "root"


@pytest.mark.full
def test_an_error_that_only_temperature_0_has_is_a_tree(tmp_path):
    code = "from tests.certify.broken_sessions import *\n"
    found = example(tmp_path, COPIES, code, verifier="./broken.py:ParentAfterTwo", temperature=0.0)
    assert (found.wanted, found.got, found.draws) == (0.0, 1.0, ()) and "temperature 0" in found.case
    assert found.decided.call.endswith(".verify") and len(found.cycle.path) >= 2


def test_the_command_draws_it_and_writes_it_as_a_page(tmp_path, capsys):
    (tmp_path / "broken.py").write_text(BROKEN)
    recipe, page = written(tmp_path, CARELESS), tmp_path / "example.html"
    assert main(["certify", str(recipe), "--exact-only", "--html", str(page)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "counter-example (" in printed and "instead of" in printed
    assert f"decided in Careless.verify (broken.py:{line_of(BROKEN, 'bonus=random.categorical(law)')})" in printed
    assert printed.index("counter-example (") < printed.index("not lossless: total variation")
    assert "<svg" in page.read_text()


def test_a_right_composition_has_none(tmp_path, capsys):
    recipe, page = written(tmp_path, FALCON), tmp_path / "example.html"
    assert main(["certify", str(recipe), "--exact-only", "--json", "--html", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["counterexample"] is None and not page.exists()


def test_what_was_not_run_in_time_is_not_shown(tmp_path, capsys):
    recipe = written(tmp_path, FALCON)
    assert main(["certify", str(recipe), "--exact-only", "--seconds", "0.001"]) == 1
    assert "not shown: interrupted before every branch was run" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--against", "rule.py:accept", "--html", "x.html"], "--html is for recipes"),
        (["--against", "rule.py:accept", "--seconds", "5"], "--seconds is for recipes"),
        (["recipe.yaml", "--seconds", "0"], "--seconds"),
        (["recipe.yaml", "--html", "."], "give --html another place"),
    ],
)
def test_bad_input(arguments, problem, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, FALCON)
    assert main(["certify", *arguments, "--exact-only"]) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1
