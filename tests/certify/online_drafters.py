"""Drafters that learn in every cycle: whether their weights changed, and one that changes within a draft."""

from dataclasses import replace

import torch

from specframe.kernel.training import learning_in
from specframe.training.online import Online, Restless
from specframe.training.online_learner import Learner


def note_changes(monkeypatch) -> list[bool]:
    """A list that gets, for each call of a learner, whether the weights changed."""
    learn, changes = Learner.learn, list[bool]()

    def watched(self, *given):
        before = [p.clone() for p in self.parameters]
        kept = learn(self, *given)
        changes.append(not all(map(torch.equal, before, self.parameters)))
        return kept

    monkeypatch.setattr(Learner, "learn", watched)
    return changes


def require_lossless_learning(found, drafter, changes):
    """A comparison of all branches shows the target's law, and the drafter learnt in most of them."""
    assert found.enumeration.exhausted and found.tv < 1e-9
    assert isinstance(drafter, Restless) and drafter.learner is not None
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
