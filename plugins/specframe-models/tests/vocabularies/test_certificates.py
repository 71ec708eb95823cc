"""Every wrapper over toy vocabularies: the contract of a drafter, and the enumerated distribution of its output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specframe import compose
from specframe.certify.compositions.small import SmallComposition
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.tiny import tiny_llama
from specframe.components.trees.fixed import Chain, Fixed
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from specframe.testing import check_drafter
from specframe_models.vocabularies.intersection import Intersection
from specframe_models.vocabularies.matching import Matching
from specframe_models.vocabularies.ngrams import Ngrams
from specframe_models.vocabularies.strings import Strings


def inner() -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(3, 0))


def test_intersection() -> None:
    check_drafter(lambda: Intersection(drafter=inner()).untrained(3))


@pytest.mark.parametrize("tree", [Chain(depth=3), Fixed(widths=[2, 1])])
def test_matching(tree) -> None:
    check_drafter(lambda: Matching(drafter=inner(), tree=tree).untrained(3))


def test_what_slem_asks_of_its_drafter_can_be_watched() -> None:
    """So that its forward passes are booked as the drafter's, and the draft stays as it is."""
    asked: list[int] = []

    def wrap(expand):
        def watched(frontier):
            asked.append(frontier.nodes.shape[1])
            return expand(frontier)

        return watched

    drafter = Matching(drafter=inner(), tree=Chain(depth=3)).untrained(3)
    results = []
    for each in (drafter, drafter.watched(wrap)):
        parts = {"target": {"use": "table", "vocab": 3}, "drafter": each, "tree": None, "verifier": "match"}
        composed = compose(**parts, sampling={"temperature": 0.0, "max_new_tokens": 8}, run={"batch": 2})
        results.append(composed.generate([[0, 1], [2]]))
    assert len(asked) >= 6 and results[0].tokens == results[1].tokens
    assert results[0].acceptance.drafted == results[1].acceptance.drafted > 0


def test_strings() -> None:
    check_drafter(lambda: Strings(drafter=inner(), width=2, reach=2).untrained(3))


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{"cache": "seen"}, {"cache": "all"}, {"shared": True}])
def test_ngrams(options) -> None:
    check_drafter(lambda: Ngrams(drafter=inner(), width=2, reach=2, **options).untrained(3))


@pytest.mark.sampled
@pytest.mark.parametrize("draw", ["iid", "without_replacement"])
@pytest.mark.parametrize(
    "drafter", ["tli", "slrs, width: 2, reach: 2", "omnidraft, cache: all, reach: 2", "omnidraft, shared: true"]
)
def test_a_recipe_in_miniature(drafter: str, draw: str, tmp_path: Path) -> None:
    """As `specframe certify` has it: the recipe's parts around a target of three tokens, sampled, under `recursive`."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "specframe: 1\ntarget: {use: table, vocab: 3}\nverifier: recursive\n"
        f"drafter: {{use: {drafter}, drafter: {{use: model, model: zoo://talk-7m}}}}\n"
        f"tree: {{use: fixed, widths: [{2 if draw == 'without_replacement' else 1}, 1], draw: {draw}}}\n",
        encoding="utf-8",
    )
    miniature = SmallComposition.of(plan(Recipe.read(recipe), discover()))
    comparison = replace(miniature, length=3).emission("", Sampling(temperature=1.0), seed=2).compare(budget=30_000)
    assert comparison.enumeration.exhausted and comparison.tv < 1e-9
