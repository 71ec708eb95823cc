"""ParallelSpec's drafter: all levels of a draft from one forward, prompted by [MASK] tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specframe import Context, InputError, Proposal, Trainable
from specframe.neural import Binding, FeatureSession, checkpoint, make_proposal, neural_target, seeded, tree_policy
from specframe_parallelspec.network import Network

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Committed, Draw, Frontier, Head, Target, TokenTree, TreePolicy


class ParallelSpec:
    """The parallel drafter of Xiao et al. 2024 (ParallelSpec).

    A forward takes in what was committed since the last one and, behind it, K [MASK] tokens: the root's
    entry gives the law of the first level and [MASK] k that of level k + 1, so K + 1 levels cost one forward,
    whatever tokens are drawn there. The [MASK]s are not remembered. A deeper tree goes on from the drafted
    tokens, K + 1 levels at a time.

    With `features` it is EAGLE's drafter turned parallel (EAGLE-ParallelSpec): an entry is a token and the
    feature before it. Without, it reads tokens alone and stands for Medusa's heads (Medusa-ParallelSpec).

    Embedding and head are the target's, frozen and not saved. Without `weights` the network starts from the
    same random weights in every run.

    Args:
        masks: the paper's K: how many [MASK] tokens; a group has one more, and so many levels a forward.
        features: whether it reads the target's features beside the tokens.
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained. Of more masks the first serve.
        head: how its outputs become logits; none: the target's own head.
    """

    # Of tokens alone it drafts without features, but it may be trained on them: its outputs are the LM head's inputs.
    taps = frozenset({"last"})
    draws: frozenset[Draw] | None = None
    nodes: int | None = None

    def __init__(
        self, *, masks: int = 4, features: bool = True, weights: str | None = None, head: Head | None = None
    ) -> None:
        if masks < 1:
            raise InputError(f"parallelspec: masks must be at least 1, got {masks}; without any, use the drafter eagle")
        self.levels = masks + 1
        self.features = features
        self.weights = weights
        self.binding: Binding[Network, FeatureSession] = Binding("parallelspec")
        self._head = head

    def bind(self, target: Target) -> None:
        """Builds the network after the target's own shape, and loads its weights.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        model = neural_target(target, "parallelspec")
        model.request(self.taps)
        masks = self.levels - 1
        if self.weights is not None:
            trained = checkpoint.read_config(self.weights).get("masks")
            masks = max(masks, trained) if isinstance(trained, int) else masks
        network = seeded(lambda: Network(model.config, masks, self.features), model)
        if self.weights is not None:
            checkpoint.check(self.weights, {**self._identity(model.config), "masks": masks})
            checkpoint.load(network, self.weights)
            network.keep_masks(self.levels - 1)
        if self._head is not None:
            self._head.bind(model)
        network.requires_grad_(not isinstance(self._head, Trainable))
        self.binding.bind(model, network)

    @property
    def module(self) -> nn.Module:
        """The [MASK] tokens and the layer; with a trainable head, that head alone. Empty before bind."""
        return self._head.module if isinstance(self._head, Trainable) else self.binding.module

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, in bfloat16, for `weights` to load again.

        With a trainable head, that head is written, for its own `weights`.
        """
        config = self.binding.target.config
        if isinstance(self._head, Trainable):
            self._head.save(folder)
        else:
            told = self._identity(config) | checkpoint.target_shape(config)
            checkpoint.save(self.binding.network, told, folder, torch.bfloat16)

    def foretell(self, features: Tensor, tokens: Tensor) -> Tensor:
        """The features of all levels from every position of whole sequences, [B, n, D], [B, n] -> [B, n, K + 1, D].

        Entry i pairs (features_i, tokens_i = token i + 1); level k from there predicts feature i + k, and sees
        nothing of the future. Gradients reach the module and the features.
        """
        pairs = torch.cat([self.binding.target.embed(tokens), features], -1)  # [B, n, 2D]
        predicted: Tensor = self.binding.network(pairs)
        return predicted

    def logits(self, features: Tensor) -> Tensor:
        """The drafter's logits for predicted features: [.., D] -> [.., V]."""
        head = self.binding.target.head if self._head is None else self._head
        return head(features)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        return tree_policy(tree, "parallelspec").grow(self.expand, root, context)

    def open(self, slots: int, room: int) -> None:
        """Begins a session; forgets earlier ones."""
        self.binding.open()

    def commit(self, news: Committed) -> None:
        """Takes in what was committed. News with a prompt starts a session afresh."""
        self.binding.commit(news, self._open)

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of the next K + 1 levels below each frontier node, in one forward."""
        features = self.binding.network.norm(self.binding.session.expand(frontier))  # [B, F, K + 1, D]
        return make_proposal(self.logits(features), self._head, features)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self.binding.keep(rows)

    def _open(self, batch: int) -> FeatureSession:
        network = self.binding.network
        return FeatureSession(
            network.layer,
            network.recall,
            self.binding.target.embed,
            batch,
            block=self.levels,
            masks=network.mask,
        )

    def _identity(self, config: Any) -> dict[str, Any]:
        """What a checkpoint and the drafter must agree on, given the target's config."""
        own = {"format": "parallelspec", "masks": self.levels - 1, "features": self.features}
        return {**own, "hidden_size": config.hidden_size, "vocab_size": config.vocab_size}
