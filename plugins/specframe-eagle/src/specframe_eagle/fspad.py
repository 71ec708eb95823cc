"""FSPAD's two changes to EAGLE's network: the token gates the feature, and the output has two halves."""

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

    A feature describes every token that may come next; the embedding paired with it is that of the token that did come.
    The pair of embedding e and feature f is mapped to x = fc([e; f]), then to x + down(act(gate(e)) * up(norm(x))): in
    the wide space of a gated MLP, the token alone determines which part of the feature passes. The MLP has the layer's
    inner width and no biases. The idea is in the paper's abstract; the formula and the weight names are from the
    authors' code.
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
        """Returns the layer's inputs, [.., 2H] -> [.., H]; the embedding is the first half of a pair."""
        x = self.fc(pairs)
        token = pairs[..., : x.shape[-1]]
        passed = self.act(self.mlp["gate_proj"](token)) * self.mlp["up_proj"](self.post_attention_layernorm(x))
        fused: Tensor = x + self.mlp["down_proj"](passed)
        return fused


class SplitLayer(DecoderLayer):
    """Decoder layers for partial alignment (Gui et al. 2024, FSPAD): the output is two vectors of the hidden size.

    The last layer's last map is twice as wide, and each half is added to the output of attention: [h; h] +
    mlp(norm(h)). The first half, the logit feature, goes to the LM head. The second, the regression feature, imitates
    the target's feature and is the input of deeper levels. Neither half has to serve both purposes.
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
        """Returns the logit features followed by the regression features: [B, T, H] -> [B, T, 2H]."""
        return torch.cat(tuple(super().forward(x, positions, mask, cache, before)), -1)


def _in_halves(mlp: nn.Module, inputs: object, output: Tensor) -> Tensor:
    """Returns the halves of an MLP's output, [B, T, 2H] -> [2, B, T, H], to both of which the residual is added."""
    return torch.stack(output.chunk(2, -1))
