"""A Llama-like decoder's forward pass as one call of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures
from specframe.kernel.errors import InputError
from specframe.kernel.layers import LayerChoice
from specframe.native.blocks import BLOCK
from specframe.native.build import load_kernels
from specframe.native.decoder import Mask, PackedLayers, Tree, odd_outputs, unlike
from specframe.native.linear import QuantizedLinear
from specframe.neural.cache import SlotCache

Unfit = Callable[[Any, Any, nn.ModuleList], str | None]
"""Function from a model's config, decoder and layers to the reason why native passes cannot run them, or None."""


@dataclass(frozen=True)
class Nodes:
    """The tokens of one forward pass, and their visible slots."""

    tokens: Tensor  # [B, N] int64
    positions: Tensor  # [B, N] int64
    sees: Tree | Mask
    row: int = 0  # the cache's row of the first row


class Decoder:
    """A model's embedding, its layers over a cache in float32, and the final norm.

    Hidden states are float32. The passes over a tree and over the same text token by token give the same bits.
    """

    def __init__(self, config: Any, decoder: Any, layers: nn.ModuleList) -> None:
        """Packs the layers of a model for which `unfit` or `unfit_floats` finds no reason."""
        self._decoder = decoder
        self._layers = PackedLayers(config, decoder.rotary_emb, list(layers))
        self._ending = decoder.norm.weight.detach().float().contiguous()

    def run(
        self,
        nodes: Nodes,
        cache: SlotCache,
        taps: frozenset[str],
        chosen: LayerChoice | None = None,
        entry: Tensor | None = None,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The hidden states behind the final norm, [B, N, D], in the model's dtype, and the taps' features.

        A layer's feature is float32, as it enters the next. Only the chosen layers run, or all if none are chosen;
        `entry` [B, N, D] is the input of the first of them, by default the tokens' embeddings.
        """
        dtype = self._decoder.embed_tokens.weight.dtype
        hidden = self._decoder.embed_tokens(nodes.tokens).float() if entry is None else entry.clone()  # [B, N, D]
        hidden = hidden.contiguous()
        wanted = {int(tap.partition(".")[2]): torch.empty_like(hidden) for tap in taps if tap != "last"}
        self._layers.run(hidden, nodes.positions, nodes.sees, cache, nodes.row, wanted, chosen, ending=self._ending)
        last = hidden.to(dtype)
        features = {f"layer.{index}": values for index, values in wanted.items()}
        return last, features | ({"last": last} if "last" in taps else {})


def unfit(config: Any, decoder: Any, layers: nn.ModuleList) -> str | None:
    """Returns why the native passes cannot run a quantized model's layers, or None if they can."""
    if (reason := unlike(config, getattr(decoder, "rotary_emb", None), list(layers))) is not None:
        return reason
    matrices = [module for module in layers.modules() if isinstance(module, QuantizedLinear)]
    if not matrices:
        return "its weights are unpacked"
    return odd_outputs(matrices)


def unfit_floats(config: Any, decoder: Any, layers: nn.ModuleList) -> str | None:
    """Returns why the native passes cannot run a model's bfloat16 or float32 layers, or None if they can."""
    if (reason := unlike(config, getattr(decoder, "rotary_emb", None), list(layers))) is not None:
        return reason
    limits = [view.limit for view in architectures.views(config).values() if view.limit is not None]
    if min(limits, default=architectures.context(config)) < architectures.context(config):
        return "its attention has a window"
    matrices = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    if {matrix.weight.dtype for matrix in matrices} not in ({torch.bfloat16}, {torch.float32}):
        return "its weights are neither in bfloat16 nor in float32"
    if any(matrix.in_features % BLOCK for matrix in matrices):
        return f"one of its matrices has inputs that {BLOCK} does not divide"
    try:
        load_kernels()
    except InputError as error:
        return str(error)
    return odd_outputs(matrices)
