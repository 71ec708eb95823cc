"""Wrappers around a drafter that learns in every cycle, and n-grams that rows share: the output's distribution."""

from __future__ import annotations

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

DRAFTERS = ["tli", "slrs, width: 2, reach: 2", "omnidraft, reach: 2", "omnidraft, reach: 2, shared: true"]


def compared(tmp_path: Path, drafter: str, component=None, length: int = 3):
    """The comparison of a recipe in miniature, and the drafter."""
    path = tmp_path / "recipe.yaml"
    inner = f"{{use: model, model: {tiny_model(3)}, dtype: float64}}"
    path.write_text(
        f"specframe: 1\ntarget: {{use: table, vocab: 3}}\nverifier: recursive\n"
        f"drafter: {{use: online, loss: {{use: hybrid, loss: {{use: tv}}}},\n"
        f"  drafter: {{use: {drafter}, drafter: {inner}}}}}\n"
        f"tree: {{use: chain, depth: 1, draw: iid}}\n",
        encoding="utf-8",
    )
    planned = plan(Recipe.read(path), discover())
    if component is not None:
        planned.parts["drafter"] = replace(planned.parts["drafter"], component=component)
    emission = replace(SmallComposition.of(planned), length=length).emission("", Sampling(temperature=1.0), seed=2)
    return emission.compare(budget=2_000, rows=1), emission.parts().drafter


@pytest.mark.sampled
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_of_another_vocabulary_that_learns_in_every_cycle_is_lossless(drafter, tmp_path, monkeypatch):
    changes = note_changes(monkeypatch)
    require_lossless_learning(*compared(tmp_path, drafter), changes)


def test_one_that_changes_within_a_draft_is_not(tmp_path):
    found, _ = compared(tmp_path, "omnidraft, reach: 2", component=ChangedOnline, length=2)
    assert found.tv > 1e-3
