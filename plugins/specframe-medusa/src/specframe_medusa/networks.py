"""What is trained: residual blocks on a feature, a level each, and the LM heads behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, silu

from specframe.neural import DecoderLayer, block_causal

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class ResBlock(nn.Module):
    """x + SiLU(W x + b) with W zero at first (Medusa, Section 2.1.1).

    A block that reads `conditions` embeddings besides the feature, [.., (1 + conditions) D] -> [.., D], has a
    projection for its residual (Hydra's code), which at first is the feature itself.
    """

    def __init__(self, size: int, conditions: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + conditions) * size, size)
        nn.init.zeros_(self.linear.weight)
        self.res_connection: nn.Module = nn.Identity()
        if conditions:
            projection = nn.Linear((1 + conditions) * size, size)
            nn.init.eye_(projection.weight)
            nn.init.zeros_(projection.bias)
            self.res_connection = projection

    def forward(self, x: Tensor) -> Tensor:
        """[.., (1 + conditions) D] -> [.., D]."""
        states: Tensor = self.res_connection(x) + silu(self.linear(x))
        return states


class MedusaNetwork(nn.ModuleList):
    """Medusa's heads (Medusa, Section 2.1.1), under the names of the published checkpoints.

    Head k is `k`: its residual blocks, then its own LM head, unless `vocab` is None and heads are shared.
    """

    def __init__(self, size: int, heads: int, layers: int, vocab: int | None) -> None:
        def head() -> nn.Sequential:
            own = [] if vocab is None else [nn.Linear(size, vocab, bias=False)]
            return nn.Sequential(*(ResBlock(size) for _ in range(layers)), *own)

        super().__init__(head() for _ in range(heads))

    def forward(self, features: Tensor) -> Tensor:
        """What every head makes of the features: [.., D] -> [.., K, V], or [.., K, D] where LM heads are shared."""
        return torch.stack([head(features) for head in self], -2)

    def lm_heads(self) -> list[nn.Linear]:
        """The heads' own LM heads; none where they are shared."""
        return [part for head in self for part in head.children() if isinstance(part, nn.Linear)]


class Prefix(nn.Module):
    """Hydra++'s prefix attention: a decoder layer of the target's kind over its features, and a norm."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.layer = DecoderLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, eps=getattr(config, "rms_norm_eps", 1e-6))

    def forward(self, features: Tensor) -> Tensor:
        """The base states of whole sequences, [B, L, D] -> [B, L, D], causal."""
        batch, length, _ = features.shape
        positions = torch.arange(length, device=features.device).expand(batch, -1)
        states: Tensor = self.norm(self.layer(features, positions, block_causal(length, 1, features.device)))
        return states


class HydraNetwork(nn.Module):
    """Hydra's sequentially dependent heads (Ankner et al. 2024), with the prefix layer of Hydra++ or without.

    Head k reads the base state and the embeddings of the root and of the k - 1 drafted tokens below it.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        heads: int,
        layers: int,
        vocab: int | None,
        prefix: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.dropout = dropout
        self.prefix = Prefix(config) if prefix else None
        self.mlp = nn.ModuleList(
            nn.ModuleList([ResBlock(size, level), *(ResBlock(size) for _ in range(layers - 1))])
            for level in range(1, heads + 1)
        )
        self.lm_head = None if vocab is None else nn.ModuleList(nn.Linear(size, vocab) for _ in range(heads))

    def forward(self, level: int, inputs: Tensor) -> Tensor:
        """What head `level` (from 1) says: [.., (1 + level) D] -> [.., V], or [.., D] where LM heads are shared.

        The inputs are the base state and the embeddings of the path from the root down, side by side.
        """
        states = inputs
        for block in self.mlp[level - 1].children():
            states = block(dropout(states, self.dropout, self.training))
        if self.lm_head is None:
            return states
        logits: Tensor = self.lm_head[level - 1](dropout(states, self.dropout, self.training))
        return logits

    def lm_heads(self) -> list[nn.Linear]:
        """The heads' own LM heads; none where they are shared."""
        return [head for head in self.lm_head or () if isinstance(head, nn.Linear)]
