"""EAGLE's drafter: the next feature from tokens and features, turned into tokens by the target's own head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specframe import Proposal, Trainable, WeightsError
from specframe.neural import Binding, FeatureSession, make_proposal, neural_target, seeded, support_of, tree_policy
from specframe_eagle import published
from specframe_eagle.network import Network, Variant
from specframe_eagle.published import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Committed, Draw, Frontier, Head, RandomSource, Sampling, Target, TokenTree, TreePolicy


class Eagle:
    """The autoregressive drafter of Li et al. 2024 (EAGLE), also that of EAGLE-2, HASS and CORAL.

    From pairs (f_i, t_(i+1)) up to the root's it predicts the next feature; the head makes it a law.
    Deeper levels follow from the predicted features and the drafted tokens, any number of frontier nodes a
    forward, so every tree policy fits: EAGLE's tree is a `fixed` one, EAGLE-2's is `dynamic`. EAGLE-2, HASS
    and CORAL train and search differently and draft with this same network.

    Embedding and head are the target's, frozen and not saved. Without `weights` the network starts from
    the same random weights in every run. With them it has the shape that their config.json tells:
    published EAGLE checkpoints load as they are, once they are safetensors.

    A head that has weights of its own is trained by itself, the drafter staying as it is.

    FSPAD (Gui et al. 2024) changes the network at both ends, and each change is an option of its own: see
    `FeatureSampler` and `SplitLayer` in `specframe_eagle.fspad`. Trees, heads, rollouts and losses stay what
    they are, so HASS and CORAL train its network, too.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how predicted features become logits; none: the target's own head.
        bias: whether a new drafter's `fc` has a bias; a loaded one has what its checkpoint says.
        feature_sampling: whether a new drafter's tokens gate what is made of features (FSPAD); a loaded one says.
        partial_alignment: whether a new drafter's logits and features come from two halves of its output
            (FSPAD); a loaded one says.
    """

    taps = frozenset({"last"})
    draws: frozenset[Draw] | None = None
    nodes: int | None = None
    block = 1

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        bias: bool = True,
        feature_sampling: bool = False,
        partial_alignment: bool = False,
    ) -> None:
        self.weights = weights
        self.variant = Variant(bias, feature_sampling, partial_alignment)
        self.binding: Binding[Network, FeatureSession] = Binding("eagle")
        self._head = head
        self._layout: Layout | None = None

    def bind(self, target: Target) -> None:
        """Builds the network after the target's own shape, or loads it.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        model = neural_target(target, "eagle")
        model.request(self.taps)
        if self.weights is None:
            layout = Layout.of_target(model.config, self.variant)
            network = seeded(lambda: Network(model.config, self.variant), model)
        else:
            layout = Layout.read(self.weights, model)
            self._agree(layout.variant, self.weights)
            network = published.load(layout, self.weights, model)
        if self._head is not None:
            self._head.bind(model)
        network.requires_grad_(not isinstance(self._head, Trainable))
        self._layout = layout
        self.binding.bind(model, network)

    @property
    def module(self) -> nn.Module:
        """The linear map and the decoder layer; with a trainable head, that head alone. Empty before bind."""
        return self._head.module if isinstance(self._head, Trainable) else self.binding.module

    @property
    def support(self) -> Tensor | None:
        """The tokens of the head's logits, int64 [v]; None: the whole vocabulary."""
        return support_of(self._head)

    @property
    def fusion(self) -> nn.Linear | None:
        """The map from the embedding beside the feature to the layer's input; None with FSPAD's feature sampling."""
        return fc if isinstance(fc := self.binding.network.fc, nn.Linear) else None

    @property
    def branches(self) -> list[nn.Linear]:
        """The last maps of attention and MLP, whose outputs are added to what the fusion gives."""
        layer: Any = self.binding.network.layer.layer
        found = (getattr(layer.self_attn, "o_proj", None), getattr(layer.mlp, "down_proj", None))
        return [part for part in found if isinstance(part, nn.Linear)]

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors in the published layout, for `weights` to load again.

        A new drafter is stored in bfloat16; one that was loaded in the dtype, and with the config, that it
        came with, so that what was not trained on comes back bit by bit. With a trainable head, that head is
        written, for its own `weights`.
        """
        target, network = self.binding.target, self.binding.network
        if isinstance(self._head, Trainable):
            self._head.save(folder)
        else:
            assert self._layout is not None
            published.save(self._layout, network, target, folder)

    def predict(
        self, features: Tensor, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Predictions for whole sequences, [B, L, D], [B, L] -> [B, L, P].

        Entry i pairs (features_i, tokens_i = token i + 1) and predicts feature i + 1; it sees itself and
        what is before, or what `mask` [B or 1, 1, L, L] says, from `positions` [B, L]. Gradients reach the
        module and the features. With partial alignment P is 2D, the predicted feature the second half.
        """
        pairs = torch.cat([self.binding.target.embed(tokens), features], -1)  # [B, L, 2D]
        predicted: Tensor = self.binding.network(pairs, positions, mask)
        return predicted

    def logits(self, predicted: Tensor) -> Tensor:
        """The drafter's logits for predictions, of which the head reads the first D: [.., P] -> [.., V]."""
        target = self.binding.target
        head = target.head if self._head is None else self._head
        return head(predicted[..., : target.config.hidden_size])

    def propose(self, root: Tensor, tree: TreePolicy | None, sampling: Sampling, random: RandomSource) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        return tree_policy(tree, "eagle").grow(self.expand, root, sampling, random)

    def commit(self, news: Committed) -> None:
        """Takes in what was committed. News with a prompt starts a session afresh."""
        target, network = self.binding.target, self.binding.network
        self.binding.commit(news, lambda batch: FeatureSession(network.layer, network.recall, target.embed, batch))

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of the level below each frontier node."""
        predicted = self.binding.session.expand(frontier)  # [B, F, 1, P]
        return make_proposal(
            self.logits(predicted), self._head, predicted[..., : self.binding.target.config.hidden_size]
        )

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self.binding.keep(rows)

    def _agree(self, stored: Variant, weights: str) -> None:
        """Raises WeightsError for a stored drafter that lacks what was asked for."""
        for name in ("feature_sampling", "partial_alignment"):
            if getattr(self.variant, name) and not getattr(stored, name):
                raise WeightsError(
                    f"the drafter in {weights} has no {name}: train one that has, or leave the option out"
                )
