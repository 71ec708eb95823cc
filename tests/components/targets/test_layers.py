"""A target that has run its first layers over a draft: its verification above them is a whole one."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.components.targets.hf import HFTarget
from specframe.kernel.layers import LayerChoice
from tests.components.targets.models import PROMPTS, SHAPES, accept, batch, random_tree

BROAD = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
"""Native code's blocks divide these sizes."""
CHOICES = [LayerChoice.first(2, 3), LayerChoice.without(3, [1], [1])]


def cycles(target: HFTarget, fresh: HFTarget, chosen: LayerChoice, close: float) -> None:
    """Lets `target` draft with the chosen layers, in a session of ragged rows; compares it with one that does not.

    Some nodes are not drafted from, and padding is. Keys and values are compared through what later cycles see of them.
    """
    noise = torch.Generator().manual_seed(3)
    taps = frozenset({"last", "layer.0", "layer.2"})
    for one in (target, fresh):
        one.request(taps)
        one.open(3, 64)
    tree, scores = target.admit(batch(PROMPTS))
    fresh.admit(batch(PROMPTS))
    for count in (9, 1, 12, 6):
        verdict = accept(tree, scores.logits)
        committed = target.commit(tree, verdict)
        fresh.commit(tree, verdict)
        tree = random_tree(committed.root, [[1, 2, 3]] * 3, count, noise)
        for start in range(0, count - 2, 3):
            seen = tree.take(torch.arange(3))
            target.run_layers(chosen, seen, torch.arange(start, start + 3).expand(3, -1))
        scores, wanted = target.score(tree), fresh.score(tree)
        assert scores.features.keys() == wanted.features.keys() == taps
        found = {"logits": scores.logits, **scores.features}
        for name, values in {"logits": wanted.logits, **wanted.features}.items():
            if close:
                torch.testing.assert_close(found[name][tree.valid], values[tree.valid], rtol=close, atol=close)
            else:
                assert torch.equal(found[name][tree.valid], values[tree.valid]), name


@pytest.mark.sampled
@pytest.mark.parametrize("chosen", CHOICES, ids=["exit", "skip"])
@pytest.mark.parametrize("family", SHAPES)
@torch.no_grad()
def test_transformers_layers(family, chosen, build):
    model = build(family).double()
    cycles(HFTarget.from_model(model), HFTarget.from_model(model), chosen, close=1e-6)


@pytest.mark.parametrize("quantization", ["int4", "int8", "native"])
@pytest.mark.parametrize("chosen", CHOICES, ids=["exit", "skip"])
@torch.no_grad()
def test_native_code_gives_the_same_bits(quantization, chosen, build):
    if quantization == "native":
        target = HFTarget.from_model(build("llama", **BROAD).bfloat16())
        target._take_native()
    else:
        target = HFTarget.from_model(build("llama", **BROAD).float())
        target._quantize(quantization)
    cycles(target, target.sibling(), chosen, close=0)


@torch.no_grad()
def test_native_code_skips_what_transformers_layers_skip(build):
    model = build("llama", **BROAD).bfloat16()
    target, slow = HFTarget.from_model(model), HFTarget.from_model(model)
    target._take_native()
    chosen = LayerChoice.without(3, [1], [2])
    found = []
    for one in (target, slow):
        one.open(1, 64)
        tree, scores = one.admit(batch(PROMPTS[:1]))
        one.commit(tree, accept(tree, scores.logits))
        tree = random_tree(torch.tensor([5]), [[1, 2, 3]], 6, torch.Generator().manual_seed(4))
        found.append(one.run_layers(chosen, tree, torch.arange(6)[None])["last"].float())
    assert (found[0] - found[1]).norm() < 2e-2 * found[1].norm()


def stored(target: HFTarget) -> list[list[torch.Tensor]]:
    """Of every row, the keys and values of its committed tokens: blocks [P, H, S, D]."""
    state = target._state
    assert state is not None
    return [[block[:, row, :, :count] for block in state.cache._blocks] for row, count in enumerate(state.rows.counts)]


def keys_and_values(target: HFTarget, fresh: HFTarget, chosen: LayerChoice, futures: list[list[int]]):
    """Pairs of what both store after each of some commits: `target` drafts with the chosen layers, `fresh` does not.

    The trees hold the right continuations, so that drafted tokens are committed, several at a time.
    """
    noise = torch.Generator().manual_seed(3)
    for one in (target, fresh):
        one.open(3, 96)
    tree, scores = target.admit(batch(PROMPTS))
    fresh.admit(batch(PROMPTS))
    written: list[list[int]] = [[] for _ in PROMPTS]
    accepted = 0
    while min(map(len, written)) < len(futures[0]):
        verdict = accept(tree, scores.logits)
        committed = target.commit(tree, verdict)
        fresh.commit(tree, verdict)
        accepted += int(verdict.length.sum())
        for row, text in enumerate(written):
            new = committed.tokens[row, : int(committed.count[row])].tolist()
            text += new[-1:] if committed.prompt is not None else new
        yield from zip(stored(target), stored(fresh), strict=True)
        rest = [future[len(text) :] for future, text in zip(futures, written, strict=True)]
        tree = random_tree(committed.root, rest, 8, noise)
        for start in range(0, 6, 2):
            target.run_layers(chosen, tree, torch.arange(start, start + 2).expand(3, -1))
        assert target._state is not None and (target._state.drafted is not None) is (chosen.whole > 0)
        scores = target.score(tree)
        fresh.score(tree)
    assert accepted > 6, "drafted tokens are among what was committed"


SHARED = [*CHOICES, LayerChoice.without(3, [], [1]), LayerChoice.without(3, [0], [2])]


@pytest.mark.sampled
@pytest.mark.parametrize("chosen", SHARED, ids=["exit", "skip", "skip an MLP", "skip at first"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2", "gpt_neox"])
@torch.no_grad()
def test_shared_keys_and_values_are_those_of_a_fresh_verification(family, chosen, build, continuation):
    """To the rounding of float64, not to the bit: a product with fewer rows may be summed in another order."""
    model = build(family)
    futures = [continuation(model, prompt, 14) for prompt in PROMPTS]
    pairs = keys_and_values(HFTarget.from_model(model), HFTarget.from_model(model), chosen, futures)
    for mine, theirs in pairs:
        for found, wanted in zip(mine, theirs, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("quantization", ["int4", "int8", "native"])
@pytest.mark.parametrize("chosen", SHARED, ids=["exit", "skip", "skip an MLP", "skip at first"])
@torch.no_grad()
def test_native_code_shares_the_very_bits_of_a_fresh_verification(quantization, chosen, build, continuation):
    model = build("llama", **BROAD).float()
    if quantization == "native":
        target = HFTarget.from_model(model.bfloat16())
        target._take_native()
    else:
        target = HFTarget.from_model(model)
        target._quantize(quantization)
    parts = specframe.compose(target=target.sibling(), sampling={"temperature": 0.0, "max_new_tokens": 14})
    futures = parts.generate(PROMPTS).tokens
    for mine, theirs in keys_and_values(target, target.sibling(), chosen, futures):
        for found, wanted in zip(mine, theirs, strict=True):
            assert torch.equal(found, wanted)
