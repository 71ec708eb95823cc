"""A drafting model's confidence: a head with the same input as its LM head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.drafters.model_weights import Loaded, Shared
from specframe.components.heads import FullHead
from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import Head
from specframe.kernel.training import Trainable
from specframe.kernel.types import Proposal
from specframe.neural.cache import SlotCache
from specframe.neural.forward import Forward, Output, Pass


class Rating:
    """An optional head, `acceptance`, that rates the tokens of a drafting model; the model computes the logits.

    `shared` holds the tokens that model and target share.
    """

    def __init__(self, head: Head | None) -> None:
        """Raises CompositionError for a head that gives no ratings or computes logits."""
        self.head: Any = head
        self.shared: Shared | None = None
        if head is None:
            return
        if not hasattr(type(head), "confidence") or not isinstance(head, Trainable):
            raise CompositionError("a model drafter makes its own logits; a head rates them: take `acceptance`")
        if not isinstance(getattr(head, "of", None), FullHead):
            raise CompositionError("a model drafter makes its own logits: leave out the `of` of its head")

    @property
    def module(self) -> nn.Module:
        """Trained part of the head."""
        module: nn.Module = self.head.module
        return module

    def bind(self, loaded: Loaded) -> None:
        """Binds the head to the model. Raises CompositionError for a model run by native code."""
        if self.head is None:
            return
        if loaded.native is not None:
            raise CompositionError(
                "a model drafter's head reads what transformers' own LM head reads, and native code computes this "
                "model: leave out `quantize` and the target's `native`, or the head"
            )
        self.head.bind(loaded.reader)

    @property
    def known(self) -> int | None:
        """Size of the model's vocabulary if it differs from the target's; otherwise None."""
        return None if self.shared is None else self.shared.known

    def rated(self, forward: Forward) -> Forward:
        """A forward pass with ratings."""
        return forward if self.head is None else RatedForward(forward, self.head)

    def propose(self, found: Tensor) -> Proposal:
        """The proposal over the target's tokens, given the output of rated passes, [B, F, K, V]."""
        logits, confidence = (found, None) if self.head is None else (found[..., :-1], found[..., -1])
        if (shared := self.shared) is None:
            return Proposal(logits, confidence)
        return Proposal(logits[..., shared.columns], confidence, shared.support, shared.vocab)


class RatedForward:
    """A forward pass whose logits have one extra column: the confidence in the tokens drafted from them.

    The confidence thus stays with its logits.
    """

    def __init__(self, inner: Forward, rater: Any) -> None:
        self.head, self.windows, self.widths, self.cache = inner.head, inner.windows, inner.widths, inner.cache
        self.finds_best, self.greedy = False, None
        self._inner, self._rater = inner, rater

    def run(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs the forward pass and rates the positions to keep, from the LM head's inputs."""
        logits, found = self._inner.run(replace(asked, taps=asked.taps | {"last"}), memory)
        features = {tap: found[tap] for tap in asked.taps}
        if logits is None:
            return None, features
        sure: Tensor = self._rater.confidence(asked.selected(found["last"]))
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.cat([wide, sure[..., None].to(wide.dtype)], -1), features


@contextmanager
def reading(model: Any) -> Iterator[list[Tensor]]:
    """A list that collects the LM head's inputs, [.., H], while the model runs inside the with block."""
    read: list[Tensor] = []
    head: nn.Module = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    try:
        yield read
    finally:
        handle.remove()
