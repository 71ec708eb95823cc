"""Adaptive stops of drafters of another vocabulary: by the most probable token, and by an acceptance head."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.testing import check_drafter
from specframe_models.specdecpp.head import AcceptanceHead
from specframe_models.specdecpp.threshold import Threshold
from specframe_models.vocabularies.intersection import Intersection
from specframe_models.vocabularies.ngrams import Ngrams
from specframe_models.vocabularies.strings import Strings
from specframe_models.vocabularies.vocabulary import Vocabulary

PAIR = Vocabulary.of_pieces(["a", "b", "ba"]), Vocabulary.of_pieces(["b", "a", "ab", "c"])
WRAPPERS = {
    "tli": lambda inner: Intersection.given(inner, PAIR),
    "slrs": lambda inner: Strings.given(inner, PAIR, reach=2),
    "omnidraft": lambda inner: Ngrams.given(inner, PAIR, reach=2),
}
PROMPTS = [[1, 2, 3, 0], [0, 1], [2, 2, 0]]


def inner(head: bool) -> ModelDrafter:
    return ModelDrafter.from_model(random_model(vocab=3, layers=1, seed=4), head=AcceptanceHead() if head else None)


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_tree_threshold_stops(name: str, head: bool) -> None:
    drafted = []
    for threshold in (0.0, 1.0):
        pipeline = specframe.compose(
            target=HFTarget.from_model(random_model(vocab=4, layers=2, seed=3)),
            drafter=WRAPPERS[name](inner(head)),
            tree=Threshold(depth=3, threshold=threshold),
            verifier="match",
            sampling={"temperature": 0.0, "max_new_tokens": 10},
            run={"batch": 3},
        )
        result = pipeline.generate(PROMPTS)
        assert result.tokens == pipeline.plain().generate(PROMPTS).tokens
        drafted.append(result.acceptance.drafted / result.acceptance.cycles)
    assert drafted[0] == 1 and drafted[1] > 1.5


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_proposal_carries_the_drafters_confidence(name: str, monkeypatch) -> None:
    asked: list[torch.Tensor] = []
    made = AcceptanceHead.confidence
    monkeypatch.setattr(
        AcceptanceHead, "confidence", lambda self, features: asked.append(made(self, features)) or asked[-1]
    )
    given: list[torch.Tensor | None] = []

    class Watching(Threshold):
        def grow(self, expand, root, context):
            def watched(frontier):
                found = expand(frontier)
                given.append(found.confidence)
                return found

            return super().grow(watched, root, context)

    specframe.compose(
        target=HFTarget.from_model(random_model(vocab=4, layers=2, seed=3)),
        drafter=WRAPPERS[name](inner(head=True)),
        tree=Watching(depth=2, threshold=1.0),
        verifier="match",
        sampling={"temperature": 0.0, "max_new_tokens": 4},
    ).generate([[1, 2, 3, 0]])
    assert given and all(found is not None and found.shape == (1, 1, 1) for found in given)
    estimates = torch.cat([each.flatten() for each in asked]).tolist()
    assert all(float(found) in estimates for found in given if found is not None)


def test_with_a_head_it_keeps_the_contract() -> None:
    check_drafter(lambda: Ngrams(drafter=inner(head=True)).untrained(3))
