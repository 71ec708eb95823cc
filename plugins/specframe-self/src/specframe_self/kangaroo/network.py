"""The adapter: one attention of the target's type and two norms, without an MLP."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe import CompositionError
from specframe.neural import DecoderLayer, DraftNetwork, Embed
from specframe.plugin import PairSpec, Predicted

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig


class Attention(nn.Module):
    """A decoder layer's first half, x + attention(norm(x)), with the call signature of a whole layer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.input_layernorm: nn.Module = layer.input_layernorm
        self.self_attn: nn.Module = layer.self_attn

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Maps [B, T, D] to [B, T, D]; `options` are the attention's."""
        mixed = self.self_attn(self.input_layernorm(hidden_states), **options)
        added: Tensor = mixed[0] if isinstance(mixed, tuple) else mixed
        return hidden_states + added


class Adapter(DraftNetwork, nn.Module):
    """Kangaroo's adapter (Liu et al. 2024, as in their code): norm(h + attention(norm(h))), for the target's LM head.

    h is the output of the target's layer `exit - 1`, the exit. The output at a position is the law after the token at
    that position, so a prediction belongs to the position whose feature it reads: `block` is 0.
    """

    block = 0

    def __init__(self, config: PretrainedConfig, exit: int) -> None:
        super().__init__()
        self.spec = PairSpec(taps=(f"layer.{exit - 1}",), imitates=None, feeds=False)
        self.layer = DecoderLayer(config)
        whole: Any = self.layer.layer
        if not hasattr(whole, "input_layernorm") or not hasattr(whole, "self_attn"):
            raise CompositionError(
                f"kangaroo's adapter is a norm and the attention after it, which a layer of {config.model_type!r} "
                "does not begin with; use a target such as Llama or Qwen3"
            )
        self.norm: nn.Module = copy.deepcopy(whole.input_layernorm)
        self.layer.layer = Attention(whole)

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns one prediction per entry along texts; tokens are not used."""
        return Predicted(self(features, positions, mask)[:, :, None])

    def forward(
        self, exits: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Computes the LM head's input, [B, n, D] -> [B, n, D].

        Attention is causal, or given by positions [B, n] and mask [B or 1, 1, n, S]. With a cache, the entries also see
        those of earlier calls, as far as the mask allows.
        """
        if positions is None:
            batch, length, _ = exits.shape
            positions = torch.arange(length, device=exits.device).expand(batch, -1)
        normed: Tensor = self.norm(self.layer(exits, positions, mask, cache))
        return normed
