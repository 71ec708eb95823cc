"""EAGLE's trained modules: a map that fuses tokens with features, and decoder layers (one in EAGLE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from specframe import InputError
from specframe.neural import DecoderLayer, FeatureNetwork, LevelModules, State
from specframe_eagle.dovetail import GatedFusion
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
    """FSPAD: logits and features come from two halves of the output (`SplitLayer`)."""
    gated: bool = False
    """Dovetail: a gate mixes token and feature (`GatedFusion`)."""
    layers: int = 1
    """Number of decoder layers (Dovetail: five)."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise InputError(f"eagle: layers must be at least 1, not {self.layers}")
        if self.gated and self.feature_sampling:
            raise InputError("eagle: fusion: gated and feature_sampling are two maps of one pair; choose one")


class EagleNetwork(FeatureNetwork):
    """EAGLE's autoregression head (Li et al. 2024, EAGLE), and those of FSPAD and Dovetail.

    A pair is the embedding of token i + 1 followed by feature i, [.., 2H]; `fc` maps 2H to H. The decoder layer is of
    the config's type without its input norm, which published drafters do not have: attention reads the output of `fc`.
    No norm follows the layer, because its output is compared with features that have passed the target's final norm.
    Layers above the first are complete, norms included.

    Predictions have P elements: H, or 2H with partial alignment. The first H go to the LM head; the last H are the
    predicted feature.
    """

    def __init__(self, config: PretrainedConfig, variant: EagleVariant) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc: nn.Module
        if variant.gated:
            self.fc = GatedFusion(config)
        elif variant.feature_sampling:
            self.fc = FeatureSampler(config, variant.bias)
        else:
            self.fc = nn.Linear(2 * hidden, hidden, bias=variant.bias)
        self.layer = (SplitLayer if variant.partial_alignment else DecoderLayer)(config, variant.layers)
        if hasattr(self.layer.layer, "input_layernorm"):
            self.layer.layer.input_layernorm = nn.Identity()

    @property
    def native(self) -> LevelModules | None:
        """The modules with which native code can compute a whole draft: EAGLE's; None with parts of other papers."""
        return None if isinstance(self.layer, SplitLayer) else LevelModules(self.layer, fusion=self.fc)

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the layer's inputs for the next pairs, [B, M, 2H] -> [B, M, H]; the state is not used."""
        inputs: Tensor = self.fc(pairs)
        return inputs, state

    def hidden(self, outputs: Tensor) -> Tensor:
        """Returns the logit features, [.., P] -> [.., H]."""
        return outputs[..., : self.layer.config.hidden_size]

    def features(self, outputs: Tensor) -> Tensor:
        """Returns the predicted features, [.., P] -> [.., H]."""
        return outputs[..., -self.layer.config.hidden_size :]
