"""A drafter that changes from cycle to cycle: certified, and refused where it changes within a draft."""

from dataclasses import replace
from pathlib import Path

import pytest

from specframe.certify.compositions.small import SmallComposition
from specframe.components.targets.tiny import tiny_model
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from specframe.training.online import Restless
from tests.certify.online_drafters import ChangedOnline, note_changes


def comparison(verifier, draw, drafter=None, budget=2_000):
    inner = {"use": "model", "model": str(tiny_model(3)), "dtype": "float64"}
    sections = {
        "target": {"use": "table", "vocab": 3},
        "drafter": {"use": "online", "drafter": inner},
        "tree": {"use": "chain", "depth": 1, "draw": draw},
        "verifier": verifier,
    }
    planned = plan(Recipe(Path("online.yaml"), {"specframe": 1, **sections}), discover())
    if drafter is not None:
        planned.parts["drafter"] = replace(planned.parts["drafter"], component=drafter)
    emission = replace(SmallComposition.of(planned), length=3).emission("", Sampling(temperature=1.0), seed=2)
    return emission.compare(budget=budget), emission.parts().drafter


@pytest.mark.parametrize(("verifier", "draw"), [("recursive", "iid"), ("match", "top")])
def test_a_drafter_that_learns_in_every_cycle_is_lossless(verifier, draw, monkeypatch):
    changes = note_changes(monkeypatch)
    found, drafter = comparison(verifier, draw)
    assert found.enumeration.exhausted and found.tv < 1e-9
    assert isinstance(drafter, Restless) and drafter.learner is not None
    assert sum(changes) > found.enumeration.branches / 2


@pytest.mark.full
def test_a_drafter_that_changes_within_a_draft_is_not():
    found, _ = comparison("recursive", "iid", ChangedOnline, budget=100)
    assert found.tv > 1e-3
