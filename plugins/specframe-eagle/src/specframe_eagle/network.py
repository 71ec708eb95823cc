"""What is trained: a linear map that fuses tokens with features, and one decoder layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe.neural import DecoderLayer, State

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class Network(nn.Module):
    """EAGLE's autoregression head (Li et al. 2024, EAGLE).

    A pair is the embedding of token i + 1 beside feature i, [.., 2H], embedding first; `fc` makes 2H into
    H. The decoder layer is one of the config's own kind without its input norm, which the published
    drafters do not have: attention reads what `fc` gives. No norm follows: the output is compared with
    features that have already passed the target's final norm.
    """

    def __init__(self, config: PretrainedConfig, bias: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layer = DecoderLayer(config)
        if hasattr(self.layer.layer, "input_layernorm"):
            self.layer.layer.input_layernorm = nn.Identity()

    def forward(self, pairs: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The predicted features, [B, L, 2H] -> [B, L, H]; plain causal, or as positions and mask say."""
        if positions is None:
            positions = torch.arange(pairs.shape[1], device=pairs.device).expand(len(pairs), -1)
        predicted: Tensor = self.layer(self.fc(pairs), positions, mask)
        return predicted

    def recall(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """The layer's inputs for the next pairs, [B, M, 2H] -> [B, M, H]; there is no state to carry."""
        return self.fc(pairs), state
