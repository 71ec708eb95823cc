"""A target that has run its first layers over a draft: its verification above them is a whole one."""

from __future__ import annotations

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.kernel.layers import LayerChoice
from tests.components.targets.models import PROMPTS, SHAPES, accept, batch, random_tree

BROAD = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
"""The kernels' blocks divide these sizes."""
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


@pytest.mark.parametrize("chosen", CHOICES, ids=["exit", "skip"])
@pytest.mark.parametrize("family", SHAPES)
@torch.no_grad()
def test_transformers_layers(family, chosen, build):
    model = build(family).double()
    cycles(HFTarget.from_model(model), HFTarget.from_model(model), chosen, close=1e-6)


@pytest.mark.parametrize("quantization", ["int4", "int8", "kernels"])
@pytest.mark.parametrize("chosen", CHOICES, ids=["exit", "skip"])
@torch.no_grad()
def test_the_kernels_give_the_same_bits(quantization, chosen, build):
    if quantization == "kernels":
        target = HFTarget.from_model(build("llama", **BROAD).bfloat16())
        target._take_kernels()
    else:
        target = HFTarget.from_model(build("llama", **BROAD).float())
        target._quantize(quantization)
    cycles(target, target.sibling(), chosen, close=0)


@torch.no_grad()
def test_the_kernels_skip_what_transformers_layers_skip(build):
    model = build("llama", **BROAD).bfloat16()
    target, slow = HFTarget.from_model(model), HFTarget.from_model(model)
    target._take_kernels()
    chosen = LayerChoice.without(3, [1], [2])
    found = []
    for one in (target, slow):
        one.open(1, 64)
        tree, scores = one.admit(batch(PROMPTS[:1]))
        one.commit(tree, accept(tree, scores.logits))
        tree = random_tree(torch.tensor([5]), [[1, 2, 3]], 6, torch.Generator().manual_seed(4))
        found.append(one.run_layers(chosen, tree, torch.arange(6)[None])["last"].float())
    assert (found[0] - found[1]).norm() < 2e-2 * found[1].norm()
