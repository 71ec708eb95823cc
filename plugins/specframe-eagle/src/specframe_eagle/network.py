"""Trained modules: a map that fuses tokens with features, and one decoder layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from specframe.neural import DecoderLayer, FeatureNetwork, LevelModules, State
from specframe_eagle.fspad import FeatureSampler, SplitLayer

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class EagleVariant:
    """Optional parts of EAGLE's networks; each is independent of the others."""

    bias: bool = True
    """True if `fc` has a bias."""
    feature_sampling: bool = False
    """FSPAD: the token gates the feature (`FeatureSampler`)."""
    partial_alignment: bool = False
    """FSPAD: whether logits and features come from two halves of the output (`SplitLayer`)."""


class EagleNetwork(FeatureNetwork):
    """EAGLE's autoregression head (Li et al. 2024, EAGLE), and FSPAD's.

    A pair is the embedding of token i + 1 and feature i, [.., 2H], embedding first; `fc` maps 2H to H. The decoder
    layer is one of the config's own kind without its input norm, which the published drafters do not have: attention
    reads the output of `fc`. No norm follows: the output is compared with features that have already passed the
    target's final norm.

    Predictions have P numbers: H, or 2H with partial alignment. Their first H go to the LM head, and the last H
    are the predicted feature.
    """

    def __init__(self, config: PretrainedConfig, variant: EagleVariant) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc = (
            FeatureSampler(config, variant.bias)
            if variant.feature_sampling
            else nn.Linear(2 * hidden, hidden, bias=variant.bias)
        )
        self.layer = SplitLayer(config) if variant.partial_alignment else DecoderLayer(config)
        if hasattr(self.layer.layer, "input_layernorm"):
            self.layer.layer.input_layernorm = nn.Identity()

    @property
    def native(self) -> LevelModules | None:
        """The modules by which kernels may compute it: EAGLE's own, without FSPAD's changes."""
        return None if isinstance(self.layer, SplitLayer) else LevelModules(self.layer, self.fc)

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """The layer's inputs for the next pairs, [B, M, 2H] -> [B, M, H]; there is no state to carry."""
        return self.fc(pairs), state

    def hidden(self, outputs: Tensor) -> Tensor:
        """The logit features, [.., P] -> [.., H]."""
        return outputs[..., : self.layer.config.hidden_size]

    def features(self, outputs: Tensor) -> Tensor:
        """The predicted features, [.., P] -> [.., H]."""
        return outputs[..., -self.layer.config.hidden_size :]
