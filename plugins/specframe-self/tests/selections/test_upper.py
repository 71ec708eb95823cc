"""Drafts on the upper halves of keys and values are lossless; a verification that reads it alone is found."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe import CompositionError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Draw
from specframe.native import decoder
from specframe.sampling.laws import Sampling
from specframe_self.selections.upper import UpperHalf
from specframe_self.selections.window import SinkWindow

PROMPT = tuple(torch.randint(3, (189,), generator=torch.Generator().manual_seed(4)).tolist())
"""Its last tokens, and three more, stand on both sides of the end of a span; 64 to 128 tokens are rounded."""
TREES = {
    "chain": (Recursive, lambda: Chain(depth=2, draw=Draw.IID)),
    "fixed": (Recursive, lambda: Fixed(widths=[2], draw=Draw.WITHOUT_REPLACEMENT)),
    "top": (Match, lambda: Dynamic(depth=2, width=2, nodes=4)),
}


def native(vocab: int = 3, cache: str | None = "int8") -> HFTarget:
    model = random_model(vocab=vocab, size=64, layers=2, seed=5).float()
    model.config.max_position_embeddings = 600
    target = HFTarget.from_model(model)
    target.cache = cache
    target._take_native()
    return target


def emission(tree: str, kv_selection=UpperHalf) -> Emission:
    verifier, policy = TREES[tree]
    target, drafter = native(), OwnLayers(quantize="int4", kv_selection=kv_selection())
    drafter.bind(target)
    parts = Parts(target, drafter, policy(), verifier())
    return Emission("", lambda: parts, Sampling(temperature=1.0), 3, PROMPT)


@pytest.mark.sampled
@pytest.mark.parametrize("kv_selection", [UpperHalf, SinkWindow])
@pytest.mark.parametrize("tree", TREES)
def test_every_text_has_the_probability_that_the_target_gives_it(tree, kv_selection):
    found = emission(tree, kv_selection).compare(budget=30_000)
    assert found.enumeration.exhausted and found.bound < 1e-5


@pytest.mark.full
def test_a_verification_that_reads_the_upper_halves_alone_is_found(monkeypatch):
    held = emission("chain")
    library, score, rough = decoder.load_native(), HFTarget.score, []

    class Kernels:
        @staticmethod
        def specframe_decode(shape, records, where, *rest):
            where._obj.upper |= bool(rough)
            return library.specframe_decode(shape, records, where, *rest)

    def scoring(target, tree):
        rough.append(True)
        try:
            return score(target, tree)
        finally:
            rough.clear()

    monkeypatch.setattr(decoder, "load_native", lambda: Kernels)
    assert held.compare(budget=30_000).bound < 1e-5
    monkeypatch.setattr(HFTarget, "score", scoring)
    assert held.compare(budget=30_000).tv > 1e-4


@pytest.mark.parametrize("batch", [1, 3])
def test_texts_are_the_targets(batch):
    noise = torch.Generator().manual_seed(2)
    prompts = [torch.randint(11, (length,), generator=noise).tolist() for length in (250, 5, 130, 66)]

    def generated(drafter):
        tree = None if drafter == "none" else {"use": "chain", "depth": 3}
        parts = {"target": native(11), "drafter": drafter, "tree": tree}
        return specframe.compose(**parts, sampling={"max_new_tokens": 40}, run={"batch": batch}).generate(prompts)

    found = generated(OwnLayers(quantize="int4", kv_selection=UpperHalf()))
    assert found.tokens == generated("none").tokens
    assert found.acceptance.tau > 1.5


def test_a_drafting_model_is_refused():
    """Its own keys and values are not split."""
    with pytest.raises(CompositionError, match="take another KV selection than `upper`"):
        ModelDrafter(model="anywhere", kv_selection=UpperHalf())


def test_a_target_without_split_int8_is_refused():
    with pytest.raises(CompositionError, match="add `cache: int8` to the target") as caught:
        OwnLayers(kv_selection=UpperHalf()).bind(native(cache=None))
    assert "\n" not in str(caught.value)
