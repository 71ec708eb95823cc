"""Dovetail's fusion: a gate decides, element by element, how much of the feature and of the token is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class GatedFusion(nn.Module):
    """Dynamic gating fusion (Zhang et al. 2024, Dovetail, arXiv 2412.18934), in place of one linear map.

    For the embedding e and the feature f of a pair, h1 = W1 f and h2 = SiLU(W2 RMSNorm(e)). The gate z = sigmoid(Wz
    [h1; h2]) mixes both: z h1 + (1 - z) h2. As in the authors' code, the norm is applied to e, the maps have no bias,
    and their initial weights are Xavier's uniform ones. The fusion has 4 H H + H weights, the linear map 2 H H.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.feature = nn.Linear(hidden, hidden, bias=False)
        self.token = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(2 * hidden, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, eps=getattr(config, "rms_norm_eps", None) or 1e-6)
        for part in (self.feature, self.token, self.gate):
            nn.init.xavier_uniform_(part.weight)

    def forward(self, pairs: Tensor) -> Tensor:
        """Returns the layer's inputs, [.., 2H] -> [.., H]; the embedding is the first half of a pair."""
        embedding, feature = pairs.chunk(2, -1)
        h1, h2 = self.feature(feature), silu(self.token(self.norm(embedding)))
        z = torch.sigmoid(self.gate(torch.cat([h1, h2], -1)))
        mixed: Tensor = z * h1 + (1 - z) * h2
        return mixed
