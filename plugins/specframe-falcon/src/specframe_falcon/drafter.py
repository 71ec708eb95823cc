"""Falcon's drafter: a block of features a forward, turned into tokens by the target's own head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specframe import CompositionError, Context, InputError, Proposal, Trainable
from specframe.neural import Binding, checkpoint, make_proposal, neural_target, seeded, support_of, tree_policy
from specframe_falcon.network import Network
from specframe_falcon.session import open_session

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Committed, Draw, Frontier, Head, Target, TokenTree, TreePolicy
    from specframe.neural import FeatureSession


class Falcon:
    """The semi-autoregressive drafter of Gao et al. 2024 (Falcon, Sections 3.1, 3.2 and 3.4).

    From pairs (f_i, t_(i+1)) up to the root's it predicts the next `block` features at once; the head
    makes them laws. Deeper levels follow from the predicted features and the drafted tokens, any number
    of frontier nodes a forward, so every tree policy fits: the paper's tree is a `fixed` one.

    Embedding and head are the target's, frozen and not saved. Without `weights` the network starts from
    the same random weights in every run. A head that has weights of its own is trained by itself, the drafter
    staying as it is.

    Args:
        block: how many levels one forward proposes (the paper's k).
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how predicted features become logits; none: the target's own head.
        dropout: between the LSTM's layers, in training only.
    """

    taps = frozenset({"last"})
    draws: frozenset[Draw] | None = None
    nodes: int | None = None

    def __init__(
        self, *, block: int = 2, weights: str | None = None, head: Head | None = None, dropout: float = 0.1
    ) -> None:
        if block < 1:
            raise InputError(f"falcon: block must be at least 1, got {block}")
        if not 0 <= dropout < 1:
            raise InputError(f"falcon: dropout must be at least 0 and below 1, got {dropout}")
        self.block = block
        self.weights = weights
        self.dropout = dropout
        self.binding: Binding[Network, FeatureSession] = Binding("falcon")
        self._head = head

    def bind(self, target: Target) -> None:
        """Builds the network after the target's own shape, and loads its weights.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        model = neural_target(target, "falcon")
        model.request(self.taps)
        network = seeded(lambda: Network(model.config, self.dropout), model)
        if self.weights is not None:
            checkpoint.check(self.weights, self._identity(model.config))
            checkpoint.load(network, self.weights)
        if self._head is not None:
            self._head.bind(model)
        network.requires_grad_(not isinstance(self._head, Trainable))
        self.binding.bind(model, network)

    @property
    def module(self) -> nn.Module:
        """The LSTM and the decoder layer; with a trainable head, that head alone. Empty before bind."""
        return self._head.module if isinstance(self._head, Trainable) else self.binding.module

    @property
    def support(self) -> Tensor | None:
        """The tokens of the head's logits, int64 [v]; None: the whole vocabulary."""
        return support_of(self._head)

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

    def predict(
        self, features: Tensor, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Predicted features of whole sequences, [B, L, D], [B, L] -> [B, L, D].

        Position i pairs (features_i, tokens_i = token i + 1) and predicts feature i + block. Blocks of
        `block` positions end at the last position and at every `block`-th before it; the first may be
        short. Gradients reach the module and the features. Positions and a mask of one's own raise
        CompositionError: the LSTM runs along the sequence, whatever a mask hides.
        """
        if positions is not None or mask is not None:
            raise CompositionError(
                "drafter falcon predicts plain sequences only, since its LSTM runs along them; use the rollout "
                "glancing or teacher_forced, or the drafter eagle"
            )
        pairs = torch.cat([self.binding.target.embed(tokens), features], -1)  # [B, L, 2D]
        predicted: Tensor = self.binding.network(pairs, self.block)
        return predicted

    def logits(self, features: Tensor) -> Tensor:
        """The drafter's logits for predicted features: [.., D] -> [.., V] (Falcon, Eq. 7)."""
        head = self.binding.target.head if self._head is None else self._head
        return head(features)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        return tree_policy(tree, "falcon").grow(self.expand, root, context)

    def open(self, slots: int, room: int) -> None:
        """Begins a session; forgets earlier ones."""
        self.binding.open()

    def commit(self, news: Committed) -> None:
        """Takes in what was committed. News with a prompt starts a session afresh."""
        target, network = self.binding.target, self.binding.network
        self.binding.commit(news, lambda batch: open_session(network, target.embed, self.block, batch))

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of the next `block` levels below each frontier node."""
        features = self.binding.session.expand(frontier)  # [B, F, k, D]
        return make_proposal(self.logits(features), self._head, features)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self.binding.keep(rows)

    def _identity(self, config: Any) -> dict[str, Any]:
        """What a checkpoint and the drafter must agree on, given the target's config."""
        return {"format": "falcon", "block": self.block, "hidden_size": config.hidden_size}
