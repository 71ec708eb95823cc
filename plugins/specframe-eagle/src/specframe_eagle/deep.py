"""Drafters of several decoder layers: the layers above the first, and a session in which pairs see no later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe.neural import Blocks, DecoderLayer, Embed, FeatureNetwork, FeatureSession, Pending, SlotCache, tensor_on

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig


class UpperLayer(DecoderLayer):
    """An ordinary decoder layer above the first, whose keys and values have a place of their own in the cache."""

    def __init__(self, config: PretrainedConfig, place: int) -> None:
        super().__init__(config)
        parts: Any = self.layer
        parts.self_attn.layer_idx = place

    def pack(self) -> None:
        """Does nothing: native code computes the matrices, and a cache of several layers is no packed layer's."""


def upper_layers(config: PretrainedConfig, layers: int) -> nn.ModuleList:
    """The layers above the first of so many."""
    return nn.ModuleList(UpperLayer(config, place) for place in range(1, layers))


class Stack(DecoderLayer):
    """A decoder layer with ordinary ones above it, [B, T, D] -> [B, T, D]; all layers see the same places."""

    def __init__(self, config: PretrainedConfig, layers: int) -> None:
        super().__init__(config)
        self.upper = upper_layers(config, layers)

    def pack(self) -> None:
        """Lets native code compute the layer as a whole where it stands alone; in a stack, its matrices."""
        if not len(self.upper):
            super().pack()

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache | None = None) -> Tensor:
        """The last layer's output."""
        x = super().forward(x, positions, mask, cache)
        for layer in self.upper:
            x = layer(x, positions, mask, cache)
        return x


class DeepSession(FeatureSession):
    """The decoding state of a session's rows, for drafters of several layers that propose a level a forward pass.

    Slot i of the cache holds pair i in every layer. A pair's keys above the first layer depend on the pairs that it saw
    there, so pairs see no later ones, and a pair is never computed again.

    The arguments are those of `specframe.neural.FeatureSession`, and `layers`, how many there are.
    """

    def __init__(self, network: FeatureNetwork, embed: Embed, slots: int, *, room: int, layers: int) -> None:
        super().__init__(network, embed, slots, room=room)
        self.cache = SlotCache(layers, 0, slots)

    def take(self, pending: Pending) -> Blocks:
        """Caches pending pairs, each of which sees those up to itself."""
        (pairs,), starts, device = pending.pairs, pending.starts, pending.pairs[0].device
        inputs, _ = self.network.inputs(pairs, (), pending.fresh)  # [B, M, D]
        batch, length, _ = inputs.shape
        counts = tensor_on(device, pending.held)
        places = tensor_on(device, starts)[:, None] + torch.arange(length, device=device)  # [B, M]
        width = max(starts) + length
        keys = torch.arange(width, device=device)
        sees = (keys < counts[:, None])[:, None] & (keys <= places[..., None])  # [B, M, W]
        even = min(starts) == max(starts)
        self.reserve(width)
        self.cache.aim(starts[0] if even else places, width, pending.first)
        outputs = self.network.layer(inputs, places, sees[:, None], self.cache)
        last = tensor_on(device, pending.fresh) - 1
        return Blocks.of_root(outputs[torch.arange(batch, device=device), last][:, None], (), counts)
