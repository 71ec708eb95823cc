"""Medusa-1: a head per level on the frozen target's last feature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from specframe import Context, Proposal
from specframe.neural import Binding, checkpoint, neural_target, seeded, too_deep, tree_policy
from specframe_medusa import published
from specframe_medusa.heads import check_counts, start_from
from specframe_medusa.networks import MedusaNetwork
from specframe_medusa.states import LastFeature

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Committed, Draw, Frontier, Head, Target, TokenTree, TreePolicy


class Medusa:
    """The parallel heads of Cai et al. 2024 (Medusa, Section 2.1), trained on a frozen target (Medusa-1).

    Head k reads the last true feature f_i, the one that gave the root, token i + 1, and proposes token i + 1 + k.
    One forward proposes all levels; the law of a level is the same below every node of the level above. A tree
    deeper than there are heads is refused.

    Every head has an LM head of its own, which starts as the target's: heads x V x D weights. With `head` they
    share a frozen one, and only the residual blocks are trained ("version 2" of the published code is `full`).
    Without `weights` the heads start as the target's own LM head, give or take a random bias.

    Args:
        heads: how many, and so how many levels are drafted.
        layers: residual blocks per head.
        weights: a trained drafter's folder, as specframe or Medusa's code writes it, `zoo://name` or Hub name;
            none: untrained.
        head: how the blocks' outputs become logits; none: an LM head for every level, as published.
    """

    taps = frozenset({"last"})
    draws: frozenset[Draw] | None = None
    nodes: int | None = None
    deepest = "heads"

    def __init__(
        self, *, heads: int = 4, layers: int = 1, weights: str | None = None, head: Head | None = None
    ) -> None:
        check_counts("medusa", heads, layers)
        self.levels = heads
        self.layers = layers
        self.weights = weights
        self.binding: Binding[MedusaNetwork, LastFeature] = Binding("medusa")
        self._head = head

    def bind(self, target: Target) -> None:
        """Builds the heads after the target's own shape, and loads their weights.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        model = neural_target(target, "medusa")
        model.request(self.taps)
        vocab = model.vocab_size if self._head is None else None
        network = seeded(lambda: MedusaNetwork(model.config.hidden_size, self.levels, self.layers, vocab), model)
        if self._head is not None:
            self._head.bind(model)
        if self.weights is not None:
            stored = published.find(self.weights, published.MEDUSA)
            published.check(stored, "medusa", self.levels, r"(\d+)\.")
            checkpoint.load(network, stored.folder, file=stored.file)
        elif self._head is None:
            start_from(model, network.lm_heads())
        self.binding.bind(model, network)

    @property
    def module(self) -> nn.Module:
        """The heads: what is trained and saved. Empty before bind."""
        return self.binding.module

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, in bfloat16 and under the published names."""
        config = {"format": "medusa", "medusa_num_heads": self.levels, "medusa_num_layers": self.layers}
        shape = checkpoint.target_shape(self.binding.target.config)
        checkpoint.save(self.binding.network, config | shape, folder, torch.bfloat16)

    def publish(self, folder: Path, *, base: str, dtype: torch.dtype = torch.float16) -> None:
        """Writes the heads as Medusa's own code reads them; `base` is the target's name."""
        published.save_medusa(self.binding.network, folder, base=base, layers=self.layers, dtype=dtype)

    def foresee(self, features: Tensor, tokens: Tensor) -> Tensor:
        """The logits of all levels after every feature, [B, n, D] -> [B, n, K, V]; the tokens have no part in them."""
        return self._speak(features)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        return tree_policy(tree, "medusa").grow(self.expand, root, context)

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of all levels below the root, [B, F, K, V]; deeper there is nothing to read."""
        feature = self.binding.session.feature  # [B, D]
        if frontier.tree.levels >= self.levels:
            raise too_deep("medusa", self.levels)
        logits = self._speak(feature)  # [B, K, V]
        return Proposal(logits[:, None].expand(-1, frontier.nodes.shape[1], -1, -1))

    def open(self, slots: int, room: int) -> None:
        """Begins a session; forgets earlier ones."""
        self.binding.open()

    def commit(self, news: Committed) -> None:
        """Keeps the last true feature."""
        self.binding.commit(news, lambda batch: LastFeature())

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self.binding.keep(rows)

    def _speak(self, features: Tensor) -> Tensor:
        """The logits of all levels: [.., D] -> [.., K, V]."""
        hidden: Tensor = self.binding.network(features)
        return hidden if self._head is None else self._head(hidden)
