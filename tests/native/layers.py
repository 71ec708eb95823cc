"""Small decoders for the native passes, and a cache for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from specframe.native.decoder import PackedLayers

WIDTH = 288
"""A width that all numbers of heads in the tests divide."""


@dataclass
class Slots:
    """Keys and values [2 * layers, B, H, S, D]."""

    tensor: Tensor

    def storage(self, sample: Tensor) -> Tensor:
        """All of them."""
        return self.tensor


def small_model(heads: int, groups: int, size: int, layers: int = 2) -> LlamaModel:
    """Random layers of `heads` queries' heads over `groups` of keys, in float32."""
    torch.manual_seed(7)
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=size,
        vocab_size=8,
        max_position_embeddings=4096,
        initializer_range=0.2,
    )
    return LlamaModel(config).eval()


def packed_layers(
    heads: int, groups: int, size: int, layers: int = 2, cache: torch.dtype = torch.float32
) -> PackedLayers:
    """The layers of `small_model` for the native passes, over a cache of this dtype."""
    model = small_model(heads, groups, size, layers)
    return PackedLayers(model.config, model.rotary_emb, list(model.layers), cache)


def slots_for(packed: PackedLayers, rows: int, slots: int) -> Slots:
    """A cache of random keys and values."""
    shape = packed.shape
    noise = torch.Generator().manual_seed(5)
    sizes = (2 * shape.layers, rows, shape.kv_heads, slots, shape.head_size)
    return Slots(torch.randn(sizes, generator=noise).to(packed.cache))
