"""Chimera's drafter: every head sees all tokens before the one that it guesses, drafted ones included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specframe import CompositionError, Context, InputError, Proposal
from specframe.neural import Binding, checkpoint, neural_target, output_weight, seeded, too_deep, tree_policy
from specframe_chimera.cache import Lookups, NGramCache
from specframe_chimera.network import Network, ngrams
from specframe_chimera.session import Session

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Committed, Draw, Frontier, Head, Target, TokenTree, TreePolicy


class Chimera:
    """The draft model of Zeng et al. 2024 (Chimera, Section 3.2).

    A trigram encoder reads the text's tokens three at a time; one decoder layer, the full context encoder, reads the
    target's features of what it has processed and the trigrams of all tokens, those drafted since included. Head k
    reads the encoder's state at the last trigram of a path of k - 1 drafted tokens, and the last true feature, and
    proposes the next token: a level a forward, each node with the law of its own path. A tree deeper than there are
    heads is refused.

    Embeddings are the target's, frozen and not saved. Every head has an LM head of its own, as published: with
    residual heads levels x 2 D x V weights. With `head` they share one, and are maps to its input.

    Args:
        heads: how many, and so how deep a draft may be.
        ngram: how many tokens the bottom layer reads at a time, 1 to 5; 3 are trigrams.
        residual: let the heads read the target's last feature beside the encoder's state.
        cache: how many n-gram states are kept in memory for when they are wanted again, the least recently used
            moved to disk; 0: all are computed.
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how the heads' outputs become logits; none: an LM head for every level, as published.
    """

    taps = frozenset({"last"})
    draws: frozenset[Draw] | None = None
    nodes: int | None = None
    deepest = "heads"

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
        self.levels = heads
        self.ngram = ngram
        self.residual = residual
        self.cache = cache
        self.weights = weights
        self.binding: Binding[Network, Session] = Binding("chimera")
        self._head = head
        self._states: NGramCache | None = None

    def bind(self, target: Target) -> None:
        """Builds the network after the target's own shape, and loads its weights.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        model = neural_target(target, "chimera")
        model.request(self.taps)
        output = None if self._head is not None else output_weight(model)
        network = seeded(lambda: Network(model.config, self.levels, self.ngram, self.residual, output), model)
        if self.weights is not None:
            checkpoint.check(self.weights, self._identity(model.config))
            checkpoint.load(network, self.weights)
        if self._head is not None:
            self._head.bind(model)
        self.binding.bind(model, network)
        self._states = NGramCache(self._compute, self.cache) if self.cache else None

    @property
    def module(self) -> nn.Module:
        """The encoders and the heads: what is trained and saved. Empty before bind."""
        return self.binding.module

    @property
    def lookups(self) -> Lookups:
        """How often n-gram states were wanted since bind, and where they came from; all zero without a cache."""
        return Lookups() if self._states is None else self._states.lookups

    @torch.no_grad()
    def precompute(self, texts: Sequence[Sequence[int]]) -> None:
        """Fills the cache with the n-grams of texts, token ids each; of too many, the last ones stay in memory.

        Raises CompositionError without a cache.
        """
        device = self.binding.target.device
        if self._states is None:
            raise CompositionError("drafter chimera has no cache to fill; set drafter.cache to a number of states")
        for text in texts:
            if text:
                self._states.fill(ngrams(torch.tensor([text], device=device), self.ngram)[0])

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, in bfloat16, for `weights` to load again."""
        config = self.binding.target.config
        told = self._identity(config) | checkpoint.target_shape(config)
        checkpoint.save(self.binding.network, told, folder, torch.bfloat16)

    def foresee(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of all levels from every position, and the encoder's states that they were read from.

        [B, n, D], [B, n + K - 1] -> [B, n, K, V], [B, n, K, D]. Position i pairs (features_i, tokens_i = token i + 1);
        level k reads the features 0 .. i and the n-grams that end with the tokens 0 .. i + k - 1, and its state
        imitates feature i + k. With gradients it forgets the cache: weights are about to change.
        """
        network = self.binding.network
        if self._states is not None and torch.is_grad_enabled():
            self._states.clear()
        n = features.shape[1]
        grams = self._compute(ngrams(tokens, self.ngram))  # [B, n + K - 1, D]
        states, logits = [], []
        for level in range(1, self.levels + 1):
            states.append(network.fuse(features, grams[:, : n + level - 1], level))
            logits.append(self._speak(level, states[-1], features))
        return torch.stack(logits, 2), torch.stack(states, 2)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        return tree_policy(tree, "chimera").grow(self.expand, root, context)

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits after each frontier node, one level: [B, F, 1, V]."""
        session = self.binding.session
        states, depth = session.expand(frontier)  # [B, F, D], [B, F]
        features = session.feature[:, None].expand_as(states)
        # Which heads speak is control flow, so the host must know.
        first, *others = depth.unique().tolist() if frontier.tree.levels else [0]
        if max(first, *others, 0) >= self.levels:
            raise too_deep("chimera", self.levels)
        logits = self._speak(first + 1, states, features)  # [B, F, V]
        for above in others:
            logits = torch.where((depth == above)[..., None], self._speak(above + 1, states, features), logits)
        return Proposal(logits[:, :, None])

    def open(self, slots: int, room: int) -> None:
        """Begins a session; forgets earlier ones."""
        self.binding.open()

    def commit(self, news: Committed) -> None:
        """Takes in what was committed. News with a prompt starts a session afresh; the n-gram states stay."""
        layer = self.binding.network.layer
        encode = self._compute if self._states is None else self._states
        self.binding.commit(news, lambda batch: Session(layer, encode, self.ngram, batch))

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self.binding.keep(rows)

    def _compute(self, grams: Tensor) -> Tensor:
        """The states of n-grams, [.., n] tokens -> [.., D]."""
        return self.binding.network.encode(grams, self.binding.target.embed)

    def _speak(self, level: int, states: Tensor, features: Tensor) -> Tensor:
        """Logits of a head, its own or those of the shared LM head: [.., D], [.., D] -> [.., V]."""
        said = self.binding.network.speak(level, states, features)
        return said if self._head is None else self._head(said)

    def _identity(self, config: Any) -> dict[str, Any]:
        """What a checkpoint and the drafter must agree on, given the target's config."""
        shape = {"heads": self.levels, "ngram": self.ngram, "residual": self.residual}
        return {"format": "chimera", **shape, "hidden_size": config.hidden_size}
