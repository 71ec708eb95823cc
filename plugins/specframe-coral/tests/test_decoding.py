"""Decoding with a router: every tree and verifier, and the law of the output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import specframe
from specframe import Sampling
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.testing import check_drafter, check_plugin
from specframe_coral.router import Router
from specframe_eagle.drafter import Eagle
from tests.small_composition import small_composition

TREES = {
    "{use: chain, depth: 2}": "match",
    "{use: dynamic, depth: 2, width: 2, nodes: 4}": "match",
    "{use: fixed, widths: [2, 1]}": "match",
    "{use: fixed, widths: [2, 1], draw: without_replacement}": "recursive",
    "{use: fixed, widths: [2, 1], draw: iid}": "recursive",
    "{use: beam, depth: 2, width: 2}": "recursive",
    "{use: dyspec, depth: 2, width: 2, nodes: 2}": "recursive",
    "{use: greedy, widths: [2]}": "recursive",
    "{use: threshold, depth: 2, threshold: 0.1}": "match",
    "{use: chain, depth: 2, draw: iid}": "block",
    "{use: fixed, widths: [2, 1], draw: 'without_replacement' }": "traversal",
}


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "recipe.yaml"
    path.write_text("specframe: 1\ntarget: {use: table, vocab: 7, seed: 3}\ndrafter: none\nverifier: match\n")
    return path


@pytest.mark.sampled
@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize(("tree", "verifier"), TREES.items())
def test_the_output_s_law_is_the_target_s(tree: str, verifier: str, active: int, recipe: Path) -> None:
    """Enumerated: a law with zeros, q's of 1 or 2 tokens of 3, is as lossless as any."""
    drafter = f"drafter={{use: eagle, head: {{use: router, groups: 3, active: {active}}}}}"
    valid = plan(Recipe.read(recipe, [drafter, f"tree={tree}", f"verifier={verifier}"]), discover())
    emission = small_composition(valid).emission("", Sampling(temperature=1.0), seed=2)
    assert emission.compare(budget=30_000).tv < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize(
    "tree", ["{use: fixed, widths: [2, 1], draw: iid}", "{use: dyspec, depth: 2, width: 2, nodes: 2}"]
)
def test_the_output_s_law_is_the_target_s_under_the_restricted_law(tree: str, recipe: Path) -> None:
    drafter = "drafter={use: eagle, head: {use: router, groups: 3, active: 2, law: restricted}}"
    valid = plan(Recipe.read(recipe, [drafter, f"tree={tree}", "verifier=recursive"]), discover())
    emission = small_composition(valid).emission("", Sampling(temperature=1.0), seed=2)
    assert emission.compare(budget=30_000).tv < 1e-9


@pytest.mark.parametrize("drafter", ["eagle", "falcon", "parallelspec"])
@pytest.mark.parametrize("tree", ["{use: chain, depth: 4}", "{use: dynamic, depth: 4, width: 3, nodes: 9}"])
def test_greedy_output_is_the_target_s(tree: str, drafter: str, recipe: Path) -> None:
    prompts = [[1, 2, 3], [0], [5, 6]]
    short = ["sampling.max_new_tokens=12", "run.batch=3"]
    plain = specframe.load(recipe, overrides=short).generate(prompts)
    options = f"drafter={{use: {drafter}, head: {{use: router, groups: 3, active: 1}}}}"
    routed = specframe.load(recipe, overrides=[*short, options, f"tree={tree}"]).generate(prompts)
    assert routed.tokens == plain.tokens
    assert routed.acceptance.drafted > 0


@pytest.mark.parametrize("active", [1, 2])
def test_a_drafter_with_a_router_keeps_the_contract(active: int) -> None:
    check_drafter(lambda: Eagle(head=Router(groups=3, active=active)))


def test_the_package_keeps_the_contract_of_plugins() -> None:
    check_plugin("specframe-coral")
