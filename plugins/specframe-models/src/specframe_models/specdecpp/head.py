"""SpecDec++'s acceptance head: in addition to logits, the probability that the token drafted from them is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import silu

from specframe import CompositionError, InputError, WeightsError
from specframe.neural import checkpoint, seeded, support_of
from specframe.plugin import FullHead, Head, NeuralTarget, Trainable, untrained_form

if TYPE_CHECKING:
    from torch import Tensor


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, features: Tensor) -> Tensor:
        """Maps [.., D] to [.., D]."""
        return features + silu(self.linear(features))


class AcceptanceNetwork(nn.Module):
    """Blocks, and a linear map to the logits of `rejected` and `accepted` (SpecDec++).

    Weights have the published names: `model.0.linear.weight`, .., and `model.{layers}.weight` for the last map.
    """

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.model = nn.Sequential(*(ResidualBlock(hidden) for _ in range(layers)), nn.Linear(hidden, 2))

    def forward(self, features: Tensor) -> Tensor:
        """Returns the probability of `accepted`, in float32 or wider: [.., D] -> [..]."""
        rejected, accepted = self.model(features).unbind(-1)
        return (accepted - rejected).to(torch.promote_types(accepted.dtype, torch.float32)).sigmoid()


class AcceptanceHead:
    """Another head's logits, and the predicted probability that the token drafted from them is accepted.

    The acceptance head of Huang et al. 2024 (SpecDec++): a small network on the drafter's predicted feature, `layers`
    blocks x + SiLU(W x + b) and a linear map to two logits. Drafters return its probability as a proposal's
    `confidence`, at which the tree `threshold` can stop. It reads the drafter's state before a token is drawn, and
    predicts the average over sampled tokens; the paper's head reads the draft model's feature after the token.

    The network is trained alone, with rollout and loss `acceptance`, while the drafter is frozen. It is the drafter's
    `module` and the only part saved. Published heads load unchanged once they are converted to safetensors; their
    blocks are copies of one block.

    Args:
        of: the head that gives the logits; none: the target's own. If it has weights, they must be trained.
        layers: number of blocks of a new network (the published `num_layers`); a loaded one follows its checkpoint.
        weights: a trained network's folder, `zoo://name` or Hub name; none: untrained.
    """

    def __init__(self, *, of: Head | None = None, layers: int = 1, weights: str | None = None) -> None:
        if layers < 0:
            raise InputError(f"acceptance: layers must be 0 or more, not {layers}")
        self.of: Head = FullHead() if of is None else of
        self.layers = layers
        self.weights = weights
        self._network: AcceptanceNetwork | None = None
        self._shape: dict[str, Any] = {}

    def untrained(self, vocab: int) -> AcceptanceHead:
        """Returns a copy of this head without weights, for a target of `vocab` tokens."""
        return AcceptanceHead(of=untrained_form(self.of, vocab), layers=self.layers)

    def bind(self, target: NeuralTarget) -> None:
        """Binds the head that gives the logits, and builds or loads the network.

        Raises WeightsError for weights that do not fit, with all mismatches.
        """
        self.of.bind(target)
        if isinstance(self.of, Trainable):
            self.of.module.requires_grad_(False)
        hidden = target.config.hidden_size
        layers = self.layers if self.weights is None else _stored_layers(self.weights, hidden)
        network = seeded(lambda: AcceptanceNetwork(hidden, layers), target)
        if self.weights is not None:
            checkpoint.load(network, self.weights)
        self._shape = {"format": "acceptance", "hidden_size": hidden, "num_layers": layers}
        self._network = network

    @property
    def support(self) -> Tensor | None:
        """The tokens of the other head's logits, int64 [v]; None: the whole vocabulary."""
        return support_of(self.of)

    @property
    def vocab(self) -> int | None:
        """The size of the whole vocabulary, if the other head has a support."""
        return getattr(self.of, "vocab", None)

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, in the published layout and bfloat16, which `weights` can load."""
        checkpoint.save(self._bound(), self._shape, folder, torch.bfloat16)

    @property
    def module(self) -> nn.Module:
        """The network, which is the part that is trained and saved; empty before bind."""
        return nn.Module() if self._network is None else self._network

    def __call__(self, features: Tensor) -> Tensor:
        """Returns the other head's logits, [.., D] -> [.., V]."""
        return self.of(features)

    def confidence(self, features: Tensor) -> Tensor:
        """Returns the probability that each feature's drafted token is accepted, if all above are: [.., D] -> [..]."""
        confidence: Tensor = self._bound()(features)
        return confidence

    def _bound(self) -> AcceptanceNetwork:
        if self._network is None:
            raise CompositionError("the head 'acceptance' was used before bind(target)")
        return self._network


def _stored_layers(weights: str, hidden: int) -> int:
    """Returns the number of blocks of a stored network. Raises WeightsError if it is no acceptance head."""
    config = checkpoint.check(weights, {"hidden_size": hidden}, "acceptance head")
    kind, layers = config.get("format", "acceptance"), config.get("num_layers", 0)  # published ones have no format
    if kind != "acceptance" or not isinstance(layers, int) or layers < 0:
        raise WeightsError(
            f"the acceptance head in {weights} does not fit: config.json has format {kind!r} and num_layers {layers!r}"
        )
    return layers
