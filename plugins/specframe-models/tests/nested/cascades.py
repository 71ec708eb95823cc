"""Cascades of small models, and their drafts."""

from __future__ import annotations

import torch

from specframe import Sampling
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.suffix import Suffix
from specframe.components.targets.tiny import tiny_llama
from specframe.plugin import Context, Promise, SeededRandom
from specframe.testing import GivenDrafter, GivenSession, tiny_target
from specframe_models.nested.cascade import Cascade


def model(seed: int = 7, vocab: int = 3) -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(vocab, seed=seed))


def cascade(draft=None, review=None, kind=Cascade, **options) -> Cascade:
    return kind(draft=draft or model(8), review=review or model(), **{"tokens": 3, "ask": 1, **options})


def three(**options) -> Cascade:
    """Three levels, all of which are asked."""
    return cascade(cascade(Suffix(), model(8), tokens=2, ask=1), tokens=4, ask=2, **options)


class Counting(ModelDrafter):
    """A model that counts its forward passes, and the nodes of them."""

    def expand(self, frontier):
        self.passes = [*getattr(self, "passes", []), frontier.nodes.shape[1]]
        return super().expand(frontier)


def counting(seed: int = 7, vocab: int = 24) -> Counting:
    return Counting.from_model(tiny_llama(vocab, seed=seed))


def drafted(drafter, policy=None, *, temperature=0.0, counts=(5, 9, 2), vocab=24):
    """The drafts of two cycles below ragged rows."""
    drafter.bind(tiny_target(vocab=vocab))
    session = GivenSession.random(len(counts), vocab, 8)
    drafter.open(len(counts), 64)
    trees = []
    for commit in (session.admit, session.advance):
        drafter.commit(commit(counts))
        random = SeededRandom(3, len(counts)).draft
        trees.append(drafter.propose(session.root, policy, Context(Sampling(temperature=temperature), random)))
    return trees


class Chains(GivenDrafter):
    """A drafter of given distributions, which may be asked for a path at once."""

    promise = Promise(path_in_frontier=True)


GIVEN = torch.tensor([0.25, 0.75], dtype=torch.float64)
