"""A quantized copy of the target's layers drafts on the target's own keys and values, and leaves no trace there."""

from __future__ import annotations

import pytest

import specframe
from specframe import CompositionError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.forward.resume import Drafted
from specframe.components.targets.forward.state import State
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Draw
from specframe.sampling.laws import Sampling
from specframe_self.selections.window import SinkWindow

PROMPT = (0, 1, 2, 0, 1)
OPTIONS = {
    "all tokens": dict,
    "window": lambda: {"kv_selection": SinkWindow(sinks=1, recent=3)},
    "first layers": lambda: {"exit": 2},
}
TREES = {
    "chain": (Recursive, lambda: Chain(depth=2, draw=Draw.IID)),
    "fixed": (Recursive, lambda: Fixed(widths=[2], draw=Draw.WITHOUT_REPLACEMENT)),
    "top": (Match, lambda: Dynamic(depth=2, width=2, nodes=4)),
    "matched chain": (Match, lambda: Chain(depth=2, draw=Draw.IID)),
}


def native(vocab: int = 11, cache: str | None = None, eos: int | None = None) -> HFTarget:
    target = HFTarget.from_model(random_model(vocab=vocab, size=64, layers=3, seed=5, eos=eos).float())
    target.cache = cache
    target._take_native()
    return target


def emission(options, tree: str) -> Emission:
    verifier, policy = TREES[tree]
    target, drafter = native(vocab=3), OwnLayers(quantize="int4", **OPTIONS[options]())
    drafter.bind(target)
    parts = Parts(target, drafter, policy(), verifier())
    return Emission("", lambda: parts, Sampling(temperature=1.0), 3, PROMPT)


@pytest.mark.sampled
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_text_has_the_probability_that_the_target_gives_it(options, tree):
    """In float32, whose rounding is all that is left."""
    found = emission(options, tree).compare(budget=30_000)
    assert found.enumeration.exhausted and found.bound < 1e-5


def test_a_verification_that_takes_over_what_the_copy_computed_is_found(monkeypatch):
    """As it would if the first layers' outputs were the target's."""
    assert emission("first layers", "chain").compare(budget=30_000).bound < 1e-5
    run = State.run_layers

    def keeping(state, run_layers, taps, context, chosen, tree, nodes, slots):
        before = state.drafted
        features = run(state, run_layers, taps, context, chosen, tree, nodes, slots)
        state.drafted = Drafted.put(before, chosen, tree, nodes, features)
        return features

    held = emission("first layers", "chain")
    monkeypatch.setattr(State, "run_layers", keeping)
    assert held.compare(budget=30_000).tv > 1e-3
    with pytest.raises(CompositionError, match="verification above them differs from a whole one"):
        emission("first layers", "chain")


PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2], [4], [5, 6, 7, 8], [9, 9], [2, 4, 6], [8]]


@pytest.mark.parametrize("batch", [1, 4])
def test_texts_are_the_targets_and_the_copy_drafts_well(batch):
    def generated(drafter):
        tree = None if drafter == "none" else {"use": "chain", "depth": 3}
        parts = {"target": native(eos=9), "drafter": drafter, "tree": tree}
        return specframe.compose(**parts, sampling={"max_new_tokens": 24}, run={"batch": batch}).generate(PROMPTS)

    found = generated(OwnLayers(quantize="int4"))
    assert found.tokens == generated("none").tokens
    assert found.acceptance.tau > 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda: HFTarget.from_model(random_model(vocab=11, size=64).float()),
            "add `native: true` to the target, on a CPU",
        ),
        (lambda: quantized(), "the target's matrices are in int8 already: leave out the drafter's `quantize`"),
    ],
)
def test_other_targets_are_refused_in_one_line(change, words):
    with pytest.raises(CompositionError, match=words) as caught:
        OwnLayers(quantize="int4").bind(change())
    assert "\n" not in str(caught.value)


def by_transformers() -> HFTarget:
    return HFTarget.from_model(random_model(vocab=11, size=64).float())


def quantized() -> HFTarget:
    target = by_transformers()
    target._quantize("int8")
    return target
