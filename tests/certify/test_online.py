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
from tests.certify.online_drafters import ChangedOnline, note_changes, require_lossless_learning


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
    # One branch at a time: side by side, what a drafter learns from the others decides whether it is noticed.
    return emission.compare(budget=budget, rows=1), emission.parts().drafter


@pytest.mark.parametrize(("verifier", "draw"), [("recursive", "iid"), ("match", "top")])
def test_a_drafter_that_learns_in_every_cycle_is_lossless(verifier, draw, monkeypatch):
    changes = note_changes(monkeypatch)
    require_lossless_learning(*comparison(verifier, draw), changes)


@pytest.mark.full
def test_a_drafter_that_changes_within_a_draft_is_not():
    found, _ = comparison("recursive", "iid", ChangedOnline, budget=100)
    assert found.tv > 1e-3
