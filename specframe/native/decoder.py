"""Llama-like decoder layers as one native call: no dispatch between their operators."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specframe.kernel.layers import LayerChoice
from specframe.native.abi import Batch, DecoderSizes, Layer
from specframe.native.blocks import Floats
from specframe.native.bounds import (
    check_integers,
    check_lists,
    check_matrices,
    check_numbers,
    check_room,
    check_visible,
)
from specframe.native.build import load_native
from specframe.native.linear import PackedLinear, QuantizedLinear, pack_together
from specframe.native.visibility import Listed, Mask, Tree

POSITIONS = 2**24
"""Above the length of any text: a table of angles of this length would not fit into memory."""


class KeysAndValues(Protocol):
    """A cache that holds the keys and values of all layers in one tensor, or in split int8."""

    capacity: int
    """Number of its slots."""

    def open(self, sample: Tensor, nodes: int) -> Any:
        """Returns the split int8 storage with room for `nodes` nodes, or None: see `specframe.neural.split_int8`."""
        ...

    def storage(self, sample: Tensor) -> Tensor:
        """Returns keys and values [2 * layers, B, H, S, D], created like a sample [B, H, 1, D]."""
        ...


class PackedLayers:
    """Layers of a decoder in bfloat16 or float32, or of a quantized one, over a cache in float32 or bfloat16.

    Hidden states are float32. Keys and values are rounded to the cache's dtype when written. A position's result
    depends only on the positions that it sees: see `passes.cpp`.
    """

    def __init__(
        self, config: Any, rotary: nn.Module, layers: Sequence[Any], cache: torch.dtype = torch.float32
    ) -> None:
        """Packs layers for which `unlike` and `odd_outputs` find no reason.

        Quantized matrices then share their storage with the native passes; others are copied. A layer may have an
        identity instead of its first norm, as EAGLE's has. It may also attend from an embedding and a state
        concatenated, each with its norm, as EAGLE-3's does: `hidden_norm` is then the state's. `cache` is the dtype of
        keys and values; uint8 is split int8.
        """
        self._buffers: list[Tensor] = []
        attention = layers[0].self_attn
        size: int = attention.head_dim
        heads, groups = attention.q_proj.out_features // size, attention.k_proj.out_features // size
        self.shape = DecoderSizes(
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
        self._rotary = rotary
        self._matrices = [_matrices(layer.self_attn, layer.mlp) for layer in layers]
        check_matrices(self._matrices, self.shape)
        pack_together([matrix for own in self._matrices for matrix in own.values()])
        self.records = (Layer * len(layers))(*map(self._layer, layers, self._matrices))
        """The layers as native code reads them."""
        self.cache = cache
        dtype = torch.float32 if cache == torch.uint8 else cache
        self._sample = torch.empty(0, groups, 1, size, dtype=dtype)  # a sample of keys and values
        self._angles = torch.empty(2, 0, 0)  # [2, positions, rotary / 2]: cosine, sine

    def run(
        self,
        hidden: Tensor,
        positions: Tensor,
        visibility: Tree | Mask | Listed,
        cache: KeysAndValues,
        row: int = 0,
        taps: Mapping[str, Tensor] | None = None,
        chosen: LayerChoice | None = None,
        embeddings: Tensor | None = None,
        ending: Tensor | None = None,
    ) -> None:
        """Replaces hidden states [B, N, D], float32, by the last layer's output.

        `row` is the cache row of the first. Layer K's output is copied to the tap `layer.K`, [B, N, D], all in float32
        or all in bfloat16, and its rotated queries to `query.K`, [B, N, heads * size], if these taps are given. If
        layers are chosen, the others pass their input on. `embeddings` [B, N, D] precede the hidden states in the
        attention input of a layer of twice the width. `ending` [D], float32, is the weight of a norm after the last
        layer.
        """
        few = self.cache == torch.uint8
        stored = cache.open(self._sample, visibility.end - visibility.base) if few else None
        blocks = cache.storage(self._sample) if stored is None else stored.recent  # [2 * layers, B, H, S, D]
        slots = blocks.shape[3] if stored is None else cache.capacity
        wanted = taps or {}
        check_numbers(() if ending is None else (ending,))
        end = self._check(hidden, blocks, slots, positions, visibility, row, wanted)
        outputs, queries = self.pointers("layer", wanted), self.pointers("query", wanted)
        places, angles = positions.contiguous(), self._angles_to(end)
        where = Batch(
            rows=hidden.shape[0],
            nodes=hidden.shape[1],
            first=row,
            width=visibility.end,
            cache_rows=blocks.shape[1],
            slots=slots,
            positions=places.data_ptr(),
            cosine=angles.data_ptr(),
            sine=angles.data_ptr() + angles.element_size() * angles.stride(0),
            tap_bits=8 * _dtype(wanted).itemsize,
            queries=ctypes.addressof(queries),
            bits=32 if blocks.dtype == torch.float32 else 16,
        )
        if stored is not None:
            where.bits, where.recent, where.base = 8, blocks.shape[3], visibility.base
            where.upper = isinstance(visibility, Listed) and visibility.upper
            where.codes, where.key_scales, where.value_scales = (
                part.data_ptr() for part in (stored.codes, stored.key_scales, stored.value_scales)
            )
        if isinstance(visibility, Tree):
            seen, other = visibility.sees.contiguous(), visibility.length.contiguous()
            where.base, where.sees, where.length = visibility.base, seen.data_ptr(), other.data_ptr()
        elif isinstance(visibility, Listed):
            seen, other, listed = (
                visibility.path.contiguous(),
                visibility.slots.contiguous(),
                visibility.listed.contiguous(),
            )
            where.base, where.visible, where.places = visibility.base, seen.data_ptr(), other.data_ptr()
            where.listed = listed.data_ptr()
            where.list_layers, _, where.list_heads, where.list_slots = listed.shape
        else:
            seen, other = visibility.visible.contiguous(), visibility.slots.contiguous()
            where.visible, where.places = seen.data_ptr(), other.data_ptr()
        if embeddings is not None:
            beginning = embeddings.float().contiguous()
            if beginning.shape != hidden.shape:
                raise ValueError(f"embeddings are {list(hidden.shape)}, not {list(beginning.shape)}")
            where.embeddings = beginning.data_ptr()
        load_native().specframe_decode(
            ctypes.byref(self.shape),
            self.records,
            ctypes.byref(where),
            blocks.data_ptr(),
            hidden.data_ptr(),
            None if ending is None else ending.data_ptr(),
            outputs,
            None if chosen is None else bytes(a + 2 * m for a, m in zip(chosen.attention, chosen.mlp, strict=True)),
        )

    def memory(self, cache: KeysAndValues, end: int) -> tuple[Tensor, Tensor]:
        """Returns the cache's storage [2 * layers, B, H, S, D], and angles of positions below `end`, [2, .., rot. / 2].

        Raises ValueError for a cache of other layers, or one with fewer slots.
        """
        blocks = cache.storage(self._sample)
        self._check_memory(blocks)
        check_room("slots", 0, end, blocks.shape[3])
        return blocks, self._angles_to(end)

    def pointers(self, kind: str, taps: Mapping[str, Tensor]) -> ctypes.Array[ctypes.c_void_p]:
        """Returns pointers to each layer's tap of a kind, or null."""
        pointers = (ctypes.c_void_p * self.shape.layers)()
        for name, values in taps.items():
            of, _, layer = name.partition(".")
            if of == kind and int(layer) < len(pointers):
                pointers[int(layer)] = values.data_ptr()
        return pointers

    def _check_memory(self, blocks: Tensor) -> None:
        """Raises ValueError for a cache of another dtype, or of other layers or heads."""
        check_numbers((blocks,), torch.float32 if self.cache == torch.uint8 else self.cache)
        memory = (2 * self.shape.layers, self.shape.kv_heads, self.shape.head_size)
        if (blocks.shape[0], blocks.shape[2], blocks.shape[4]) != memory:
            raise ValueError(f"the cache has other layers or heads than the decoder: {list(blocks.shape)}")

    def _check(
        self,
        hidden: Tensor,
        blocks: Tensor,
        slots: int,
        positions: Tensor,
        visibility: Tree | Mask | Listed,
        row: int,
        taps: Mapping[str, Tensor],
    ) -> int:
        """Returns the first position after those of the nodes.

        Raises ValueError for tensors that native code would misread, or whose bounds it would exceed.
        """
        rows, nodes = hidden.shape[:2]
        check_numbers((hidden, *(values for name, values in taps.items() if name.startswith("query."))))
        check_numbers((values for name, values in taps.items() if name.startswith("layer.")), _dtype(taps))
        widths = {"layer": self.shape.width, "query": self.shape.heads * self.shape.head_size}
        shapes = [(tensor, widths[name.partition(".")[0]]) for name, tensor in taps.items()]
        if any(tensor.shape != (rows, nodes, wide) for tensor, wide in [(hidden, self.shape.width), *shapes]):
            raise ValueError(
                f"hidden states and taps are [B, N, {self.shape.width}], and queries [B, N, {widths['query']}]"
            )
        self._check_memory(blocks)
        check_room("rows", row, row + rows, blocks.shape[1])
        check_room("slots", 0, visibility.end, slots)
        end = check_integers("positions", positions, (rows, nodes), POSITIONS)
        if isinstance(visibility, Tree):
            check_visible(visibility.sees, (rows, nodes, nodes))
            check_integers("lengths", visibility.length, (rows,), visibility.base + 1)
        elif isinstance(visibility, Listed):
            check_visible(visibility.path, (rows, nodes, visibility.end - visibility.base))
            check_integers("places", visibility.slots, (rows, nodes), slots)
            check_lists(visibility.listed, self.shape, rows, visibility.base)
        else:
            check_visible(visibility.visible, (rows, nodes, visibility.end))
            check_integers("places", visibility.slots, (rows, nodes), slots)
        return end

    def _angles_to(self, end: int) -> Tensor:
        """Returns cosines and sines of the positions below `end`, and possibly more: [2, positions, rotary / 2]."""
        if end > self._angles.shape[1]:
            table = torch.arange(max(2 * self._angles.shape[1], end, 1024))[None]
            pair = self._rotary(torch.empty(1), table)  # [1, positions, rotary] each, halves repeated
            self._angles = torch.cat(pair).float().chunk(2, -1)[0].contiguous()
            self.shape.rotary = 2 * self._angles.shape[-1]
        return self._angles

    def _layer(self, layer: Any, matrices: Mapping[str, QuantizedLinear]) -> Layer:
        attention = layer.self_attn
        two = hasattr(layer, "hidden_norm")
        return Layer(
            attention_norm=self._pointer(_weight(layer, "hidden_norm" if two else "input_layernorm")),
            token_norm=self._pointer(_weight(layer, "input_layernorm") if two else None),
            normed_residual=getattr(layer, "norm_before_residual", False),
            mlp_norm=self._pointer(layer.post_attention_layernorm.weight),
            query_norm=self._pointer(_weight(attention, "q_norm")),
            key_norm=self._pointer(_weight(attention, "k_norm")),
            **{name: matrix.record for name, matrix in matrices.items()},
        )

    def _pointer(self, weight: Tensor | None) -> int | None:
        if weight is None:
            return None
        values = weight.detach().float().contiguous()
        self._buffers.append(values)
        return values.data_ptr()


def _dtype(taps: Mapping[str, Tensor]) -> torch.dtype:
    """Returns the dtype of the layers' outputs among taps."""
    return torch.bfloat16 if any(part.dtype == torch.bfloat16 for part in taps.values()) else torch.float32


def _matrices(attention: Any, mlp: Any) -> dict[str, QuantizedLinear]:
    """Returns the matrices of a layer as native code reads them; those that are read together share their storage."""
    parts = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)
    qkv, gate_up = (QuantizedLinear.join([packed(part) for part in joined]) for joined in parts)
    return {"qkv": qkv, "output": packed(attention.o_proj), "gate_up": gate_up, "down": packed(mlp.down_proj)}


def packed(linear: nn.Module) -> QuantizedLinear:
    """Returns a linear layer as native code reads it: itself if packed, otherwise a copy in float32 or bfloat16."""
    if isinstance(linear, QuantizedLinear):
        return linear
    if isinstance(linear, PackedLinear):
        return linear.packed
    assert isinstance(linear, nn.Linear)
    weight = linear.weight.detach()
    return QuantizedLinear(Floats(weight if weight.dtype == torch.float32 else weight.bfloat16()), linear.bias)


def _weight(module: nn.Module, name: str) -> Tensor | None:
    norm = getattr(module, name, None)
    weight: Tensor | None = getattr(norm, "weight", None)
    return weight
