"""Chimera's drafter: every head reads all tokens before the one it predicts, including drafted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specframe import CompositionError, InputError
from specframe.neural import NeuralDrafter, checkpoint, output_weight, own_lm_heads
from specframe.plugin import Promise
from specframe_chimera.cache import Lookups, NGramCache
from specframe_chimera.network import ChimeraNetwork, ngrams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specframe.plugin import Head, NeuralTarget, Target


class Chimera(NeuralDrafter[ChimeraNetwork]):
    """The draft model of Zeng et al. 2024 (Chimera, Section 3.2).

    A trigram encoder reads the text's tokens three at a time. One decoder layer, the full context encoder, reads the
    target's features of the processed tokens and the trigrams of all tokens, including drafted ones. Head k reads the
    encoder's state at the last trigram of a path of k - 1 drafted tokens, and the last true feature, and proposes the
    next token: one level per forward pass, with a law for each node's path. A tree deeper than the number of heads is
    refused.

    Embeddings are the target's, frozen and not saved. Every head has its own LM head, as published: with residual heads
    levels x 2 D x V weights. With `head` they share one, and map to its input.

    Args:
        heads: number of heads, which limits the depth of a draft.
        ngram: number of tokens that the bottom layer reads at a time, 1 to 5; 3 are trigrams.
        residual: let the heads read the target's last feature in addition to the encoder's state.
        cache: number of n-gram states kept in memory for reuse, the least recently used moved to disk; 0: every state
            is computed.
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how the heads' outputs become logits; none: an LM head for every level, as published.
    """

    name = "chimera"

    def __init__(
        self,
        *,
        heads: int = 4,
        ngram: int = 3,
        residual: bool = True,
        cache: int = 0,
        weights: str | None = None,
        head: Head | None = None,
    ) -> None:
        if heads < 1:
            raise InputError(f"chimera: heads must be at least 1, got {heads}")
        if not 1 <= ngram <= 5:
            raise InputError(f"chimera: ngram must be 1 to 5, got {ngram}")
        if cache < 0:
            raise InputError(f"chimera: cache must be 0 or more n-gram states, got {cache}")
        super().__init__(weights=weights, head=head)
        self.levels = heads
        self.promise = Promise(depth=heads)
        self.ngram = ngram
        self.residual = residual
        self.cache = cache

    def build(self, target: NeuralTarget) -> ChimeraNetwork:
        """Returns a new network for the target."""
        output = None if self.head is not None else output_weight(target)
        return ChimeraNetwork(target.config, self.levels, self.ngram, self.residual, output)

    def load(self, target: NeuralTarget, weights: str) -> ChimeraNetwork:
        """Loads the network of a checkpoint. Raises WeightsError for one that does not fit, with all mismatches."""
        rows, *_ = checkpoint.shapes(weights).get("heads.0.weight", [0])
        if self.head is not None and rows == target.vocab_size:
            raise own_lm_heads(weights)
        return super().load(target, weights)

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the fields on which a checkpoint and the drafter must agree."""
        return {"heads": self.levels, "ngram": self.ngram, "residual": self.residual}

    def bind(self, target: Target) -> None:
        """Builds the network in the target's shape, or loads it, and empties the cache of n-gram states."""
        super().bind(target)
        self.network.states = NGramCache(self._compute, self.cache) if self.cache else None

    @property
    def lookups(self) -> Lookups:
        """Numbers of requests for n-gram states since bind, by source; all zero without a cache."""
        states = self.network.states
        return Lookups() if states is None else states.lookups

    @torch.no_grad()
    def precompute(self, texts: Sequence[Sequence[int]]) -> None:
        """Fills the cache with the n-grams of texts, given as token ids; the last ones stay in memory.

        Raises CompositionError without a cache.
        """
        states = self.network.states
        if states is None:
            raise CompositionError("drafter chimera has no cache to fill; set drafter.cache to a number of states")
        for text in texts:
            if text:
                states.fill(ngrams(torch.tensor([text], device=self.target.device), self.ngram)[0])

    def _compute(self, grams: torch.Tensor) -> torch.Tensor:
        """Returns the states of n-grams, [.., n] tokens -> [.., D]."""
        return self.network.encode(grams, self.target.embed)
