"""Keys and values of a target's last layer: of committed tokens, and of texts in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specframe import CompositionError
from specframe.neural import turned

if TYPE_CHECKING:
    from specframe.plugin import NeuralTarget


class LastLayer:
    """Computes the last layer's keys and values from its inputs, the tap `layer.K` of the layer before it.

    It uses the target's modules, so it is not copied together with a network.
    """

    def __init__(self, target: NeuralTarget) -> None:
        layers = int(target.config.num_hidden_layers)
        if layers < 2:
            raise CompositionError("drafter longspec reads the layer before the target's last: it needs two or more")
        self.tap = f"layer.{layers - 2}"
        self._target = target

    def __deepcopy__(self, memo: Any) -> LastLayer:
        return self

    @torch.no_grad()
    def __call__(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the keys and values [B, key heads, n, d] of the layer's inputs [B, n, D] at positions [B, n].

        Raises CompositionError for a layer that does not compute them as Llama and related models do.
        """
        model: Any = getattr(self._target, "model", None)
        decoder: Any = model.get_decoder() if hasattr(model, "get_decoder") else None
        layer: Any = decoder.layers[-1] if hasattr(decoder, "layers") else None
        attention: Any = getattr(layer, "self_attn", None)
        rotary: Any = getattr(decoder, "rotary_emb", None)
        if rotary is None or not all(hasattr(attention, name) for name in ("k_proj", "v_proj", "head_dim")):
            raise CompositionError(
                "drafter longspec is trained on targets whose layers have k_proj, v_proj and one rotary embedding, "
                "as those of Llama and Qwen have"
            )
        with torch.autocast(states.device.type, enabled=False):
            normed = layer.input_layernorm(states.to(self._target.dtype))
            keys, values = (
                part(normed).unflatten(-1, (-1, attention.head_dim)) for part in (attention.k_proj, attention.v_proj)
            )
            if hasattr(attention, "k_norm"):
                keys = attention.k_norm(keys)
            cos, sin = (part[:, None].to(keys.dtype) for part in rotary(normed, positions))
            return turned(keys.transpose(1, 2), cos, sin), values.transpose(1, 2)
