"""Compositions over a hybrid miniature: a layer of Mamba-2, whose state no rejected node enters, and an attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specframe.certify.compositions.small import SmallComposition
from specframe.components.targets.tiny import tiny_hybrid
from specframe.kernel.errors import CompositionError
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from tests.components.targets.test_recurrent import reads_the_neighbours_inputs, takes_in_a_rejected_node
from tests.repo.repository import RECIPES, name

REGISTRY = discover()
RECYCLING = {"use": "suffix-recycling", "cap": 2, "nodes": 4}
COMPOSED = {
    "recycled": (RECYCLING, None, "match"),
    "lookup": ({"use": "lookup", "length": 2}, None, "recursive"),
    "features in a tree": (
        {"use": "eagle"},
        {"use": "fixed", "widths": [2], "draw": "without_replacement"},
        "recursive",
    ),
    "features by value": ({"use": "eagle"}, {"use": "dynamic", "depth": 2, "width": 2, "nodes": 3}, "match"),
}
LENGTH = 3
BRANCHES = 3_000
LOSSLESS = [path for path in RECIPES if path.parent.name != "lossy"]
OWN_LAYERS = {
    "recipes/long/chunks.yaml",
    "recipes/long/magicdec.yaml",
    "recipes/long/self-int4.yaml",
    "recipes/long/snapkv.yaml",
    "recipes/long/speckv.yaml",
    "recipes/long/triforce.yaml",
    "recipes/long/upper.yaml",
    "recipes/long/verified.yaml",
    "recipes/own-layers/del.yaml",
    "recipes/own-layers/swift.yaml",
    "recipes/small/longspec.yaml",
    "recipes/small/own-layers/kangaroo.yaml",
}
"""Recipes that draft with the target's own layers or keys, for which a state cannot forget a token."""
FORGETFUL = {
    "recipes/rasd.yaml": ["drafter.second.remember=false"],
    "recipes/without-training/retrieval.yaml": ["drafter.remember=false"],
}
"""Overrides without which equal choices have other outcomes: stores that remember earlier texts."""


def miniature(drafter, tree, verifier):
    sections = {"drafter": drafter, "verifier": verifier, "target": "table"} | ({} if tree is None else {"tree": tree})
    made = SmallComposition.of(plan(Recipe(Path("own.yaml"), {"specframe": 1, **sections}), REGISTRY))
    return replace(made, model=tiny_hybrid, length=LENGTH)


def compare(*parts, **settings):
    return miniature(*parts).emission("hybrid", Sampling(temperature=1.0), **settings).compare(budget=BRANCHES)


@pytest.mark.sampled
@pytest.mark.parametrize("name", COMPOSED)
def test_compositions_keep_the_law_of_a_hybrid(name):
    comparison = compare(*COMPOSED[name], seed=3)
    assert comparison.tv < 1e-9 and comparison.enumeration.missing < 0.01, comparison


@pytest.mark.sampled
@pytest.mark.parametrize("path", LOSSLESS, ids=name)
def test_every_recipe_keeps_the_law_of_a_hybrid_or_is_refused(path):
    made = SmallComposition.of(plan(Recipe.read(path, FORGETFUL.get(name(path), ())), REGISTRY))
    small = replace(made, model=tiny_hybrid, length=2, small=True)
    if name(path) in OWN_LAYERS:
        with pytest.raises(CompositionError, match="recurrent layers keep one state for all committed tokens"):
            small.emission("hybrid", Sampling(temperature=1.0))
        return
    comparison = small.emission("hybrid", Sampling(temperature=1.0), seed=3).compare(budget=500, alone=20)
    assert comparison.tv < 1e-9 and comparison.enumeration.branches > 8, comparison


@pytest.mark.parametrize("spoil", [takes_in_a_rejected_node, reads_the_neighbours_inputs])
def test_states_that_follow_another_path_are_found(spoil, monkeypatch):
    """Controls: the self-test of a model that is loaded would find them, too; a certificate has to by itself."""
    made = miniature(*COMPOSED["features in a tree"])
    emission = made.emission("hybrid", Sampling(temperature=1.0), seed=3)  # the target is built, and tested, before
    spoil(monkeypatch)
    assert emission.compare(budget=BRANCHES).tv > 1e-3


def test_own_layers_are_refused_over_a_hybrid():
    with pytest.raises(CompositionError, match="recurrent layers keep one state for all committed tokens"):
        compare({"use": "self", "exit": 1}, {"use": "chain", "depth": 2}, "match")
