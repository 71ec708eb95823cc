"""Hydra and Hydra++: heads that see the path they continue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from specframe import Context, InputError, Proposal
from specframe.neural import Binding, checkpoint, neural_target, seeded, too_deep, tree_policy
from specframe_medusa import published
from specframe_medusa.heads import check_counts, start_from
from specframe_medusa.networks import HydraNetwork
from specframe_medusa.states import LastFeature, PrefixedFeature

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import (
        Committed,
        Draw,
        Frontier,
        Head,
        NeuralTarget,
        Target,
        TokenTree,
        TreePolicy,
    )


class Hydra:
    """The sequentially dependent heads of Ankner et al. 2024 (Hydra, and Hydra++ of the same paper).

    Head k reads the base state, the root's embedding and those of the k - 1 drafted tokens below it, and proposes
    the next token: a level a forward, each with the law of its own path. The base state is the last true feature,
    or, with `prefix`, what a decoder layer over all features makes of it. A tree deeper than there are heads is
    refused.

    Hydra++ is `prefix: true, layers: 4` and a training on the target's law (loss `cross_entropy` as it is).
    Embeddings are the target's, frozen and not saved. LM heads are as for `medusa`, with a bias as published.

    Args:
        heads: how many, and so how deep a draft may be.
        layers: residual blocks per head, the first of which reads the path; 4 in Hydra++.
        prefix: put a decoder layer of the target's kind between its features and the heads, as in Hydra++.
        dropout: before every block and LM head, in training only; 0.2 in the published Hydra++.
        weights: a trained drafter's folder, as specframe writes it or in Hydra's layout, `zoo://name` or Hub
            name; none: untrained.
        head: how the blocks' outputs become logits; none: an LM head for every level, as published.
    """

    taps = frozenset({"last"})
    draws: frozenset[Draw] | None = None
    nodes: int | None = None
    deepest = "heads"

    def __init__(
        self,
        *,
        heads: int = 4,
        layers: int = 1,
        prefix: bool = False,
        dropout: float = 0.0,
        weights: str | None = None,
        head: Head | None = None,
    ) -> None:
        check_counts("hydra", heads, layers)
        if not 0 <= dropout < 1:
            raise InputError(f"hydra: dropout must be at least 0 and below 1, got {dropout}")
        self.levels = heads
        self.layers = layers
        self.prefix = prefix
        self.dropout = dropout
        self.weights = weights
        self.binding: Binding[HydraNetwork, LastFeature | PrefixedFeature] = Binding("hydra")
        self._head = head

    def bind(self, target: Target) -> None:
        """Builds the heads after the target's own shape, and loads their weights.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        model = neural_target(target, "hydra")
        model.request(self.taps)
        vocab = model.vocab_size if self._head is None else None
        network = seeded(
            lambda: HydraNetwork(model.config, self.levels, self.layers, vocab, self.prefix, self.dropout), model
        )
        if self._head is not None:
            self._head.bind(model)
        if self.weights is not None:
            self._load(network, self.weights, model)
        elif self._head is None:
            start_from(model, network.lm_heads())
        self.binding.bind(model, network)

    @property
    def module(self) -> nn.Module:
        """The heads and the prefix layer: what is trained and saved. Empty before bind."""
        return self.binding.module

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, in bfloat16."""
        config = {"format": "hydra", "heads": self.levels, "layers": self.layers, "prefix": self.prefix}
        shape = checkpoint.target_shape(self.binding.target.config)
        checkpoint.save(self.binding.network, config | shape, folder, torch.bfloat16)

    def publish(self, folder: Path, *, base: str, dtype: torch.dtype = torch.float16) -> None:
        """Writes the heads in the layout of Hydra's own code; `base` is the target's name."""
        embedding = _embedding(self.binding.target)
        published.save_hydra(self.binding.network, folder, embedding, base=base, layers=self.layers, dtype=dtype)

    def foresee(self, features: Tensor, tokens: Tensor) -> Tensor:
        """The logits of all levels from every position, [B, n, D], [B, n + K - 1] -> [B, n, K, V].

        Position i pairs (features_i, tokens_i = token i + 1); level k reads the base state there and the tokens
        i .. i + k - 1, and says what follows them.
        """
        target, network = self.binding.target, self.binding.network
        base = features if network.prefix is None else network.prefix(features)  # [B, n, D]
        n = base.shape[1]
        embedded = target.embed(tokens)  # [B, n + K - 1, D]
        inputs, logits = base, []
        for level in range(1, self.levels + 1):
            inputs = torch.cat([inputs, embedded[:, level - 1 : level - 1 + n]], -1)  # [B, n, (1 + level) D]
            logits.append(self._speak(network(level, inputs)))
        return torch.stack(logits, 2)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        return tree_policy(tree, "hydra").grow(self.expand, root, context)

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits after each frontier node, one level: [B, F, 1, V]."""
        target, network = self.binding.target, self.binding.network
        base = self.binding.session.base(frontier.tree.tokens[:, 0])  # [B, D]
        climb, depth = _climb(frontier)  # [B, F, levels + 1], [B, F]
        base = base[:, None].expand(-1, climb.shape[1], -1)
        embedded = target.embed(climb)  # [B, F, levels + 1, D], a node's own token first, the root's last

        def after(level: int) -> Tensor:
            path = embedded[:, :, :level].flip(2).flatten(2)  # [B, F, level D], from the root down
            return self._speak(network(level, torch.cat([base, path], -1)))  # [B, F, V]

        # Which heads run is control flow, so the host must know; policies that grow level by level need one.
        low, high = torch.stack(depth.aminmax()).tolist() if frontier.tree.levels else (0, 0)
        if high >= self.levels:
            raise too_deep("hydra", self.levels)
        logits = after(low + 1)
        for level in range(low + 1, high + 1):
            logits = torch.where((depth == level)[..., None], after(level + 1), logits)
        return Proposal(logits[:, :, None])

    def open(self, slots: int, room: int) -> None:
        """Begins a session; forgets earlier ones."""
        self.binding.open()

    def commit(self, news: Committed) -> None:
        """Takes in what was committed. News with a prompt starts a session afresh."""
        prefix = self.binding.network.prefix
        self.binding.commit(news, lambda batch: LastFeature() if prefix is None else PrefixedFeature(prefix, batch))

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self.binding.keep(rows)

    def _speak(self, hidden: Tensor) -> Tensor:
        """Logits of what a head gave: its own, or those of the shared one."""
        return hidden if self._head is None else self._head(hidden)

    def _load(self, network: HydraNetwork, weights: str, target: NeuralTarget) -> None:
        stored = published.find(weights, published.HYDRA)
        published.check(stored, "hydra", self.levels, r"(?:hydra_)?mlp\.(\d+)\.")
        if stored.file == published.OWN:
            checkpoint.load(network, stored.folder)
        else:
            published.load_hydra(network, stored, _embedding(target))


def _climb(frontier: Frontier) -> tuple[Tensor, Tensor]:
    """The tokens from each frontier node up, [B, F, levels + 1], the root's to the end; and the nodes' depth [B, F]."""
    tree, node = frontier.tree, frontier.nodes
    tokens, depth = [], torch.zeros_like(node)
    for _ in range(tree.levels + 1):
        tokens.append(tree.tokens.gather(1, node))
        parent = tree.parent.gather(1, node)
        depth = depth + (parent >= 0)
        node = parent.clamp(min=0)
    return torch.stack(tokens, 2), depth


def _embedding(target: NeuralTarget) -> Tensor:
    """The target's token embeddings, [V, D]."""
    return target.embed(torch.arange(target.vocab_size, device=target.device))
