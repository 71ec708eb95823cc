"""The conformance check of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import Head
from specframe.kernel.training import Trainable
from specframe.neural.heads import support_of
from specframe.testing.tiny import tiny_target

VOCAB, SIZE = 11, 8
CLOSE = 1e-9


def check_head(make: Callable[[], Head]) -> None:
    """Raises AssertionError unless the head keeps its contract.

    Bound to a tiny random Llama of 11 tokens in float64, it must give the same in every run and disturb no generator;
    give logits over the whole vocabulary, or its support, for features of any leading shape, at least one token of
    each being possible, and each position's the same whatever its neighbours; and pass gradients to the features and
    none to the target, or refuse to, with a SpecframeError. A `Trainable` head's module holds nothing of the target.
    """
    target: Any = tiny_target(vocab=VOCAB, size=SIZE)
    before = torch.get_rng_state()
    head, again = make(), make()
    for each in (head, again):
        each.bind(target)
    assert torch.equal(before, torch.get_rng_state()), "making and binding a head must not disturb torch's generator"
    chance = torch.Generator().manual_seed(0)
    features = torch.randn(2, 3, SIZE, generator=chance, dtype=torch.float64)
    with torch.no_grad():
        logits = head(features)
        support = support_of(head)
        width = VOCAB if support is None else len(support)
        assert logits.shape == (2, 3, width), f"logits of shape {tuple(logits.shape)} for features [2, 3, {SIZE}]"
        if support is not None:
            assert bool((support.diff() > 0).all()), "a support lists tokens in ascending order, each once"
            assert int(support[0]) >= 0 and int(support[-1]) < VOCAB, "a support lists tokens of the vocabulary"
            assert getattr(head, "vocab", None) == VOCAB, "a head with a support has the vocabulary's size as `vocab`"
        assert not bool(logits.isnan().any()), "a logit is not a number"
        assert bool(logits.isfinite().any(-1).all()), "no token is possible"
        assert torch.equal(logits, again(features)), "two heads of one make give different logits"
        for row in range(2):
            for place in range(3):
                alone = head(features[row, place])
                assert torch.allclose(alone, logits[row, place], rtol=0, atol=CLOSE), "a position depends on another"
    shared = list(target.model.parameters())
    if isinstance(head, Trainable):
        own = list(head.module.parameters())
        assert own, "there is nothing to train"
        assert not {id(weight) for weight in own} & {id(weight) for weight in shared}, "the module holds the target's"
    features.requires_grad_()
    try:
        torch.autograd.backward(head(features).logsumexp(-1).sum())
    except SpecframeError:
        return  # it is for drafting alone, and declares it
    assert features.grad is not None and bool(features.grad.any()), "no gradient reaches the features"
    assert all(weight.grad is None for weight in shared), "the target gets gradients"
