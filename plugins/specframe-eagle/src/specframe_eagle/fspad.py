"""FSPAD's two changes to EAGLE's network: the token samples the feature, and the output has two halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe import CompositionError
from specframe.neural import DecoderLayer

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig


class FeatureSampler(nn.Module):
    """Feature sampling (Gui et al. 2024, FSPAD): a fusion of tokens and features, in place of one linear map.

    A feature describes every token that may come next, the embedding paired with it the one that came. It maps the pair
    of embedding e and feature f to x = fc([e; f]), then to x + down(act(gate(e)) * up(norm(x))): in the wide space of a
    gated MLP the token alone decides which part of the feature passes. The MLP is as wide as the layer's own and has no
    biases. The abstract gives the idea; the formula is that of the authors' code, as are the names of the weights.
    """

    def __init__(self, config: PretrainedConfig, bias: bool) -> None:
        from transformers.activations import ACT2FN  # a slow import

        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.fc = nn.Linear(2 * hidden, hidden, bias=bias)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, inner, bias=False),
                "up_proj": nn.Linear(hidden, inner, bias=False),
                "down_proj": nn.Linear(inner, hidden, bias=False),
            }
        )
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=getattr(config, "rms_norm_eps", 1e-6))
        self.act = ACT2FN[config.hidden_act]

    def forward(self, pairs: Tensor) -> Tensor:
        """The layer's inputs, [.., 2H] -> [.., H]; embedding first."""
        x = self.fc(pairs)
        token = pairs[..., : x.shape[-1]]
        passed = self.act(self.mlp["gate_proj"](token)) * self.mlp["up_proj"](self.post_attention_layernorm(x))
        fused: Tensor = x + self.mlp["down_proj"](passed)
        return fused


class SplitLayer(DecoderLayer):
    """Decoder layers for partial alignment (Gui et al. 2024, FSPAD): the output is two vectors of the hidden size.

    The last layer's last map is twice as wide, and each half is added to the output of attention:
    [h; h] + mlp(norm(h)). The first half, the logit feature, goes to the LM head; the second, the regression feature,
    imitates the target's feature and is read by deeper levels. So neither has to serve both ends.
    """

    def __init__(self, config: PretrainedConfig, layers: int = 1) -> None:
        super().__init__(config, layers)
        mlp = getattr(self.layers[-1], "mlp", None)
        down = getattr(mlp, "down_proj", None)
        if not isinstance(mlp, nn.Module) or not isinstance(down, nn.Linear):
            raise CompositionError(
                f"partial_alignment widens the last map of a layer's MLP, and a layer of {config.model_type!r} has no "
                "mlp.down_proj; use a target such as Llama or Qwen3"
            )
        mlp.down_proj = nn.Linear(down.in_features, 2 * down.out_features, bias=down.bias is not None)
        mlp.register_forward_hook(_in_halves)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: Cache | None = None,
        before: Tensor | None = None,
    ) -> Tensor:
        """The logit features and, after them, the regression features: [B, T, H] -> [B, T, 2H]."""
        return torch.cat(tuple(super().forward(x, positions, mask, cache, before)), -1)


def _in_halves(mlp: nn.Module, inputs: object, output: Tensor) -> Tensor:
    """The halves of an MLP's output, [B, T, 2H] -> [2, B, T, H], in order: a residual adds to both."""
    return torch.stack(output.chunk(2, -1))
