"""Recipes drawn from what is installed: each is refused with a sentence, or lossless in every random outcome.

The quick tier draws with every component, and each day with another tenth of the pairs of components that compose.
"""

import json
from functools import lru_cache
from zlib import crc32

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, seed, settings
from safetensors.torch import save_file

from specframe.components.targets.tiny import tiny_model
from specframe.kernel.errors import PluginError
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registration
from specframe.testing import check_recipe, recipes
from specframe.testing.coverage import Coverage
from tests.tiers import tier_of

GROUPS = 120
"""Tests that the cases of all pairs are divided among."""
SETS = 8
"""Tests that the cases of all components are divided among."""
DRAWN, NIGHTLY = 2, 40
"""Recipes drawn of the components of a group's case of the day, and every night of every case; the first is mostly the
smallest one."""
BUDGET = 1_000
"""Branches of a recipe, at most."""


@pytest.fixture(scope="session")
def coverage(tmp_path_factory):
    return _coverage(tmp_path_factory.mktemp("given"))


@lru_cache(maxsize=1)
def _coverage(folder):
    """All compositions of what is installed; some options no type describes."""
    profile = {"rows": 1, "draft_seconds": 0.5, "block": 1, "cycle_seconds": {1: 10.0, 2: 10.5, 3: 11.0, 5: 12.0}}
    (folder / "costs.json").write_text(json.dumps(profile | {"acceptance": [[0.8], [0.7], [0.6], [0.5]]}))
    save_file({"table": torch.arange(6.0).reshape(3, 2)}, folder / "table.safetensors")
    given = {
        "goodput.costs": [[str(folder / "costs.json")]],
        "embeddings.file": [str(folder / "table.safetensors")],
        "excerpt.drafter": [{"use": "model", "model": str(tiny_model(3))}],  # a selection may read its attention
        "self.skip": [[0], [1], {"attention": [1]}, {"mlp": [0]}],
    }
    return Coverage(discover(), given)


class Drawing:
    """Recipes of a day, and what was found of them."""

    def __init__(self, coverage, config, record):
        self.coverage, self.day, self.record = coverage, tier_of(config).day, record

    def check_smallest(self, case):
        """The smallest recipe of a case decodes, if its drafter has what it reads on a small target."""
        found = self.check(case.recipe)
        assert found.refusal is None or found.loaded, f"{case.recipe} is refused: {found.refusal}"

    def draw(self, case, count):
        """Other recipes of the components of a case."""

        @seed(crc32(repr((self.day, case.components)).encode()))
        @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(recipes(self.coverage.registry, containing=case.names, given=self.coverage.given))
        def drawn(recipe):
            if recipe != case.recipe:
                self.check(recipe)

        drawn()

    def check(self, recipe):
        found = check_recipe(recipe, budget=BUDGET, registry=self.coverage.registry)
        self.record("recipe", (found.refusal is None, found.branches, self.coverage.components_of(recipe)))
        return found


@pytest.fixture
def drawing(coverage, pytestconfig, record_property):
    return Drawing(coverage, pytestconfig, record_property)


@pytest.mark.parametrize("number", range(SETS))
def test_every_component_composes(number, drawing):
    for case in drawing.coverage.few[number::SETS]:
        drawing.check_smallest(case)


@pytest.mark.sampled
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_pair_that_composes_is_drawn(group, drawing):
    cases = drawing.coverage.cases[group::GROUPS]
    for case in cases:
        drawing.check_smallest(case)
    drawing.draw(cases[drawing.day.toordinal() % len(cases)], DRAWN)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_many_recipes_of_every_pair(group, drawing):
    for case in drawing.coverage.cases[group::GROUPS]:
        drawing.draw(case, NIGHTLY)


def test_all_components_compose_and_the_cases_have_all_pairs(coverage):
    assert not coverage.missing
    assert {pair for case in coverage.cases for pair in case.pairs} >= coverage.pairs
    assert {component for case in coverage.few for component in case.components} >= coverage.components
    kinds = {kind for kind, _ in coverage.components}
    assert kinds == {"drafter", "tree", "verifier", "head", "kv_selection", "selection", "store"}


def test_a_component_that_is_not_installed_is_named():
    with pytest.raises(PluginError, match="no drafter named 'falcom'; did you mean 'falcon'"):
        recipes(containing={"drafter": "falcom"})


FOUND = [
    """
    drafter: {use: placed, device: cpu, drafter: {use: example}}
    tree: chain
    verifier: typical
    sampling: {top_p: 0.25, grammar: {regex: a+}, temperature: 1.0}
    """,
    """
    drafter: {use: online, drafter: {use: model, model: MODEL}, every: 2}
    tree: chain
    verifier: surprise
    sampling: {temperature: 1.0}
    """,
    """
    drafter: {use: self, kv_selection: {use: verified, chunk: 2, recent: 2}, skip: [1]}
    tree: chain
    verifier: match
    sampling: {temperature: 1.0}
    """,
]
"""Recipes that were once refused wrongly: a lossy rule's tokens under a grammar, rows that a learning drafter joins,
and queries of a layer that is left out."""


@pytest.mark.parametrize("text", FOUND, ids=["grammar", "learning", "queries"])
def test_recipes_that_were_refused_decode(text):
    written = yaml.safe_load(text.replace("MODEL", str(tiny_model(3))))
    assert check_recipe({"specframe": 1, "target": "table"} | written, budget=BUDGET).refusal is None


def test_a_failure_is_printed_as_yaml_with_the_command_that_repeats_it(tmp_path):
    (tmp_path / "wrong_verifier.py").write_text(WRONG, encoding="utf-8")
    registry = discover()
    registry.add(Registration("verifier", "wrong", "wrong_verifier:Wrong", "emits the next token", "local"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(AssertionError, match=r"not lossless|plain decoding") as error:
            search(registry)
    report = str(error.value)
    assert "repeat it: specframe certify drawn.yaml --exact-only" in report
    shrunk = yaml.safe_load(report.partition("--- drawn.yaml\n")[2])
    assert shrunk["verifier"] == {"use": "wrong"} and shrunk["drafter"] == {"use": "lookup", "length": 2}


WRONG = '''
from specframe.components.verifiers.match import Match
from specframe.kernel.types import Verdict


class Wrong(Match):
    """Emits the next token of the vocabulary as its bonus."""

    def verify(self, tree, laws, random):
        verdict = super().verify(tree, laws, random)
        return Verdict(verdict.path, verdict.length, (verdict.bonus + 1) % 3)
'''


def search(registry):
    """Draws recipes of a wrong verifier until one fails, and shrinks it."""

    @seed(0)
    @settings(max_examples=5, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(recipes(registry, containing={"drafter": "lookup", "tree": None, "verifier": "wrong"}))
    def wrong(recipe):
        check_recipe(recipe, budget=200, registry=registry)

    wrong()
