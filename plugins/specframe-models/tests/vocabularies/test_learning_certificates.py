"""Wrappers around a drafter that learns in every cycle, and n-grams that rows share: the output's distribution."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specframe.certify.compositions.small import SmallComposition
from specframe.components.targets.tiny import tiny_model
from specframe.kernel.training import learning_in
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from specframe.training.online import Online, Restless
from specframe.training.online_learner import Learner

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
    return emission.compare(budget=2_000), emission.parts().drafter


@pytest.mark.sampled
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_of_another_vocabulary_that_learns_in_every_cycle_is_lossless(drafter, tmp_path, monkeypatch):
    learn, changes = Learner.learn, list[bool]()

    def watched(self, *given):
        before = [p.clone() for p in self.parameters]
        kept = learn(self, *given)
        changes.append(not all(map(torch.equal, before, self.parameters)))
        return kept

    monkeypatch.setattr(Learner, "learn", watched)
    found, made = compared(tmp_path, drafter)
    assert found.enumeration.exhausted and found.tv < 1e-9
    assert isinstance(made, Restless) and made.learner is not None
    assert sum(changes) > found.enumeration.branches / 2


class Changed(Restless):
    """Draws before a change of its weights, and records the distribution after it."""

    def propose(self, root, tree, context):
        drawn = super().propose(root, tree, context)
        with torch.no_grad():
            for p in learning_in(self.drafter).module.parameters():
                p.mul_(2)
            recorded = super().propose(root, tree, context)
            for p in learning_in(self.drafter).module.parameters():
                p.div_(2)
        return replace(drawn, q=recorded.q)


class ChangedOnline(Online):
    """Changes within a draft."""

    def untrained(self, vocab):
        return Changed.of(super().untrained(vocab))


def test_one_that_changes_within_a_draft_is_not(tmp_path):
    found, _ = compared(tmp_path, "omnidraft, reach: 2", component=ChangedOnline, length=2)
    assert found.tv > 1e-3
