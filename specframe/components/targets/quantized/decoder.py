"""A Llama-like decoder's forward pass as one call of the kernels: no dispatch between its operators."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures
from specframe.kernel.errors import InputError
from specframe.neural.quantized.blocks import BLOCK, TILE, Halves
from specframe.neural.quantized.library import Batch, Layer, Shape, load_kernels
from specframe.neural.quantized.linear import QuantizedLinear
from specframe.neural.state.cache import SlotCache

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""transformers' model types whose layers the kernels compute."""
ROTARY = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings that are a table: the same for every length of text."""

LARGEST_HEAD = 256
Unfit = Callable[[Any, Any, nn.ModuleList], str | None]
"""Why the kernels cannot run a model's layers, given its config, decoder and layers; None if they can."""


@dataclass(frozen=True)
class Nodes:
    """The tokens of one forward pass, and what they see."""

    tokens: Tensor  # [B, N] int64
    positions: Tensor  # [B, N] int64
    sees: Tensor  # [B, N, N] bool; no node sees a later one
    length: Tensor  # [B] int64: the first so many slots of a row are seen by all its nodes
    base: int  # the slot of the first node
    row: int = 0  # the cache's row of the first row


class Decoder:
    """The layers of a model of bfloat16 or that was quantized, over a cache in float32.

    Hidden states are float32. The passes over a tree and over the same text token by token give the same bits: see
    `kernels.cpp`.
    """

    def __init__(self, config: Any, decoder: Any, layers: nn.ModuleList) -> None:
        """Of a model for which `unfit` or `unfit_halves` finds no reason.

        Quantized layers then share their storage with this decoder; weights of bfloat16 are copied, the model's stay.
        """
        self._decoder = decoder
        self._kept: list[Tensor | QuantizedLinear] = []
        attention: Any = layers[0].self_attn
        size: int = attention.head_dim
        heads, groups = attention.q_proj.out_features // size, attention.k_proj.out_features // size
        self._shape = Shape(
            layers=len(layers),
            width=config.hidden_size,
            heads=heads,
            kv_heads=groups,
            head_size=size,
            rotary=0,
            mlp=config.intermediate_size,
            epsilon=config.rms_norm_eps,
            scale=attention.scaling,
        )
        self._layers = (Layer * len(layers))(*(self._layer(layer) for layer in layers))
        self._sample = torch.empty(0, groups, 1, size)  # what keys and values are like
        self._angles = torch.empty(2, 0, 0)  # [2, positions, rotary / 2]: cosine, sine

    def run(self, nodes: Nodes, cache: SlotCache, taps: frozenset[str]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The hidden states behind the final norm, [B, N, D], and the features of the taps, in the model's dtype."""
        batch, count = nodes.tokens.shape
        embedded = self._decoder.embed_tokens(nodes.tokens)  # [B, N, D]
        hidden = embedded.float().contiguous()
        cosine, sine = self._rotations(nodes.positions)
        blocks = cache.storage(self._sample)  # [2 * layers, B, H, S, D]
        length, sees = nodes.length.contiguous(), nodes.sees.contiguous()
        where = Batch(
            rows=batch,
            nodes=count,
            first=nodes.row,
            base=nodes.base,
            cache_rows=blocks.shape[1],
            slots=blocks.shape[3],
            length=length.data_ptr(),
            sees=sees.data_ptr(),
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
        )
        wanted = {int(tap.partition(".")[2]): torch.empty_like(hidden) for tap in taps if tap != "last"}
        pointers = [wanted[index].data_ptr() if index in wanted else None for index in range(self._shape.layers)]
        load_kernels().specframe_decode(
            ctypes.byref(self._shape),
            self._layers,
            ctypes.byref(where),
            blocks.data_ptr(),
            hidden.data_ptr(),
            (ctypes.c_void_p * len(pointers))(*pointers),
        )
        last = nn.functional.rms_norm(hidden, hidden.shape[-1:], self._norm, self._shape.epsilon).to(embedded.dtype)
        features = {f"layer.{index}": values.to(embedded.dtype) for index, values in wanted.items()}
        return last, features | ({"last": last} if "last" in taps else {})

    @property
    def _norm(self) -> Tensor:
        weight: Tensor = self._decoder.norm.weight
        return weight.float()

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions, [B * N, rotary / 2] each."""
        end = int(positions.max()) + 1
        if end > self._angles.shape[1]:
            table = torch.arange(max(2 * self._angles.shape[1], end, 1024))[None]
            pair = self._decoder.rotary_emb(torch.empty(1), table)  # [1, positions, rotary] each, halves repeated
            self._angles = torch.cat(pair).float().chunk(2, -1)[0].contiguous()
            self._shape.rotary = 2 * self._angles.shape[-1]
        cosine, sine = self._angles[:, positions.flatten()]
        return cosine, sine

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return Layer(
            attention_norm=self._pointer(layer.input_layernorm.weight),
            mlp_norm=self._pointer(layer.post_attention_layernorm.weight),
            query_norm=self._pointer(_weight(attention, "q_norm")),
            key_norm=self._pointer(_weight(attention, "k_norm")),
            qkv=self._join(attention.q_proj, attention.k_proj, attention.v_proj).record,
            output=self._matrix(attention.o_proj).record,
            gate_up=self._join(mlp.gate_proj, mlp.up_proj).record,
            down=self._matrix(mlp.down_proj).record,
        )

    def _pointer(self, weight: Tensor | None) -> int | None:
        if weight is None:
            return None
        values = weight.detach().float().contiguous()
        self._kept.append(values)
        return values.data_ptr()

    def _matrix(self, linear: nn.Module) -> QuantizedLinear:
        self._kept.append(matrix := packed(linear))
        return matrix

    def _join(self, *parts: nn.Module) -> QuantizedLinear:
        """One layer of these outputs, whose storage they share from now on."""
        self._kept.append(joined := QuantizedLinear.join([packed(part) for part in parts]))
        return joined


def packed(linear: nn.Module) -> QuantizedLinear:
    """A linear layer as the kernels take it: itself if it was quantized, else a copy in bfloat16."""
    if isinstance(linear, QuantizedLinear):
        return linear
    assert isinstance(linear, nn.Linear)
    return QuantizedLinear(Halves(linear.weight.detach().to(torch.bfloat16)), linear.bias)


def unfit(config: Any, decoder: Any, layers: nn.ModuleList) -> str | None:
    """Why the kernels cannot run a quantized model's layers, or None if they can."""
    if (reason := _other_layers(config, decoder, layers)) is not None:
        return reason
    matrices = [module for module in layers.modules() if isinstance(module, QuantizedLinear)]
    if not matrices:
        return "its weights are unpacked"
    return _odd_outputs(matrices)


def unfit_halves(config: Any, decoder: Any, layers: nn.ModuleList) -> str | None:
    """Why the kernels cannot run a model's layers in bfloat16, or None if they can."""
    if (reason := _other_layers(config, decoder, layers)) is not None:
        return reason
    limits = [view.limit for view in architectures.views(config).values() if view.limit is not None]
    if min(limits, default=architectures.context(config)) < architectures.context(config):
        return "its attention has a window"
    matrices = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    if {matrix.weight.dtype for matrix in matrices} != {torch.bfloat16}:
        return "its weights are not in bfloat16"
    if any(matrix.in_features % BLOCK for matrix in matrices):
        return f"one of its matrices has inputs that {BLOCK} does not divide"
    try:
        load_kernels()
    except InputError as error:
        return str(error)
    return _odd_outputs(matrices)


def _odd_outputs(matrices: Sequence[QuantizedLinear | nn.Linear]) -> str | None:
    if any(matrix.out_features % TILE for matrix in matrices):
        return f"one of its matrices has outputs that {TILE} does not divide"
    return None


def _other_layers(config: Any, decoder: Any, layers: nn.ModuleList) -> str | None:
    """What in a model's layers the kernels do not compute, or None."""
    if config.model_type not in FAMILIES:
        return f"the layers of {config.model_type} are not Llama's"
    if (activation := getattr(config, "hidden_act", None)) != "silu":
        return f"its activation is {activation}"
    rotary = getattr(decoder.rotary_emb, "rope_type", "default")
    if rotary not in ROTARY:
        return f"its rotary embedding, {rotary}, changes with the length of the text"
    first: Any = layers[0]
    size: int = first.self_attn.head_dim
    if size % TILE or size > LARGEST_HEAD:
        return f"its heads have {size} numbers, not a multiple of {TILE} up to {LARGEST_HEAD}"
    return None


def _weight(module: nn.Module, name: str) -> Tensor | None:
    norm = getattr(module, name, None)
    weight: Tensor | None = None if norm is None else norm.weight
    return weight
