"""Most likely tokens: of logits, or the exact argmax of an LM head or a whole pass through a bounded int8 copy."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from ctypes import c_int64
from typing import TypeGuard

import torch
from torch import Tensor

from specframe.kernel.types import TokenTree, Verdict
from specframe.native.abi import Batch, BoundedWeight, GreedyChoice
from specframe.native.blocks import BLOCK, TILE
from specframe.native.bounds import check_numbers, check_room, check_visible
from specframe.native.build import are_loaded, load_native
from specframe.native.decoder import KeysAndValues, PackedLayers
from specframe.native.linear import QuantizedLinear

UNKNOWN = 1e30
"""Bound for outputs beyond the end of a head's last tile, which are never the largest."""
UNIT = 2.0**-24
"""Largest relative error of an operation in float32."""


class BoundedHead:
    """An LM head in 16 or 32 bits with an int8 copy, whose bounded error gives the exact argmax of the logits.

    It reads all of the copy, and only those tiles of the head whose logits may be the largest according to the copy:
    rounding weights and states changes a token's logit by a bounded amount (Cauchy-Schwarz).
    """

    def __init__(self, head: QuantizedLinear) -> None:
        """Creates the copy of a head that `can_bound` accepts."""
        self.head, self.copy = head, QuantizedLinear.empty(head.out_features, head.in_features, 8)
        norms = torch.zeros(4, len(head.packed) * TILE, dtype=torch.float64)
        record = head.record
        load_native().specframe_copy(ctypes.byref(record), self.copy.packed.data_ptr(), norms.data_ptr())
        self._lost, self._copied = _bounds(norms, head.in_features)  # [tiles * TILE] each
        self._lost[head.out_features :] = UNKNOWN
        self.record = BoundedWeight(head.record, self.copy.record, self._lost.data_ptr(), self._copied.data_ptr())
        """The record that native code reads; valid while this object exists."""

    def bounds(self, states: Tensor) -> Tensor:
        """Returns bounds of the error of the copy's logits, for states [M, K]: [M, N], up to the last bits."""
        off = (states.float() - _rounded(states)).norm(dim=-1)[:, None]
        found: Tensor = self._lost * states.float().norm(dim=-1)[:, None] + self._copied * off
        return found[:, : self.head.out_features]

    def argmax(self, states: Tensor) -> Tensor:
        """Returns the first token of the largest logit of each state, [.., D] -> [..] int64; -1 if it is NaN."""
        rows = states.float().contiguous()
        best = torch.empty(rows.shape[:-1], dtype=torch.int64)
        check_numbers((rows,))
        if rows.shape[-1] != self.head.in_features:
            raise ValueError(f"the head takes {self.head.in_features} numbers a state, not {rows.shape[-1]}")
        load_native().specframe_argmax(ctypes.byref(self.record), rows.data_ptr(), best.numel(), best.data_ptr())
        return best


class GreedyPass:
    """A decoder's pass over whole trees, from tokens to their most likely successors, in one native call.

    Args:
        layers: the decoder's layers.
        head: its LM head.
        table: the embeddings of all tokens, [V, D], in bfloat16 or float32.
        ending: the weight of the final norm, [D].
    """

    def __init__(self, layers: PackedLayers, head: BoundedHead, table: Tensor, ending: Tensor) -> None:
        check_numbers((table,), torch.bfloat16 if table.dtype == torch.bfloat16 else torch.float32)
        self._layers, self._bounded, self._table, self._ending = layers, head, table, ending

    def run(
        self,
        tree: TokenTree,
        counts: Sequence[int],
        base: int,
        cache: KeysAndValues,
        taps: Mapping[str, Tensor],
        context: int,
    ) -> tuple[Tensor, Tensor, Verdict | None]:
        """Returns the states after the final norm, [B, N, D] in the table's dtype, and the tokens, [B, N] int64.

        It also returns the verdict that accepts the path of these tokens through each row's tree; None if no token has
        any probability on one. Invalid nodes are not computed: their states and taps are left unchanged, 0 in what is
        returned.

        A node sees its row's committed slots, `counts` of them, and its ancestors, whose slots begin at `base`. Nodes
        beyond the `context` are placed at its last position. Layers' outputs are copied to the taps `layer.K`, [B, N,
        D] in the table's dtype. Raises ValueError for tensors that native code would misread.
        """
        layers, table, shape = self._layers, self._table, tree.shape
        tokens, parents, valid = _fields(tree)
        blocks, angles = layers.memory(cache, end := base + shape[1])
        check_numbers(taps.values(), table.dtype)
        check_room("rows", 0, shape[0], blocks.shape[1])
        if len(counts) != shape[0] or not 0 < min(counts) <= max(counts) <= base:
            raise ValueError(f"the nodes of {shape[0]} rows follow 1 to {base} slots of each")
        if any(part.shape != (*shape, table.shape[1]) for part in taps.values()):
            raise ValueError(f"taps are [{shape[0]}, {shape[1]}, {table.shape[1]}]")
        last, best = table.new_zeros(*shape, table.shape[1]), torch.empty(shape, dtype=torch.int64)
        lengths = (c_int64 * len(counts))(*counts)
        where = Batch(
            rows=shape[0],
            nodes=shape[1],
            width=end,
            cache_rows=blocks.shape[1],
            slots=blocks.shape[3],
            base=base,
            length=ctypes.addressof(lengths),
            cosine=angles.data_ptr(),
            sine=angles.data_ptr() + angles.element_size() * angles.stride(0),
            tap_bits=8 * table.dtype.itemsize,
            bits=8 * blocks.dtype.itemsize,
        )
        choice = GreedyChoice(
            table=table.data_ptr(),
            known=table.shape[0],
            tokens=tokens.data_ptr(),
            parents=parents.data_ptr(),
            valid=valid.data_ptr(),
            positions=context,
            halves=table.dtype == torch.bfloat16,
            head=ctypes.addressof(self._bounded.record),
            last=last.data_ptr(),
            best=best.data_ptr(),
            levels=tree.levels,
            verdict=(verdict := torch.empty(shape[0], 2 * tree.levels + 5, dtype=torch.int64)).data_ptr(),
        )
        load_native().specframe_choose(
            *(ctypes.byref(layers.shape), layers.records, ctypes.byref(where), blocks.data_ptr()),
            *(self._ending.data_ptr(), layers.pointers("layer", taps), ctypes.byref(choice)),
        )
        del tokens, parents, valid  # native code reads their addresses until here
        found = Verdict.unpack(verdict)
        return last, best, found if all(found.to_host(tree).tokens) else None


def _fields(tree: TokenTree) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a tree's tokens, parents and valid, contiguous. Raises ValueError if native code would misread them."""
    tokens, parents, valid = tree.tokens.contiguous(), tree.parent.contiguous(), tree.valid.contiguous()
    check_visible(valid, tuple(tokens.shape))
    if any(part.dtype != torch.int64 or part.shape != tokens.shape for part in (tokens, parents)):
        raise ValueError(f"tokens and parents are int64 {list(tokens.shape)}")
    return tokens, parents, valid


def _rounded(states: Tensor) -> Tensor:
    """Returns states [M, K] as products with the copy use them: rounded to 8 bits in blocks."""
    blocks = states.float().unflatten(-1, (-1, BLOCK))
    steps = blocks.abs().amax(-1, keepdim=True) / 127
    return ((blocks / steps.where(steps > 0, 1.0)).round() * steps).flatten(-2)


def can_bound(head: object) -> TypeGuard[QuantizedLinear]:
    """Returns whether a copy can find a head's largest logit: a float head, without bias, of finite weights.

    The matrix of a head in 4 or 8 bits is not larger than a copy.
    """
    return (
        isinstance(head, QuantizedLinear)
        and head.bits >= 16
        and head.bias is None
        and head.packed.is_cpu
        and bool(head.packed.view(torch.bfloat16 if head.bits == 16 else torch.float32).abs().amax() < 1e4)
    )


def _bounds(norms: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    """Returns bounds of an output's error by the norms of a state and of its rounding error, [N] each.

    Given [4, N] float64: the squared norms of the rounding error of an output's weights, of the weights, of their copy,
    and its largest scale. The first bound includes the error of floating-point sums: of the head's products, and of the
    copy's, where codes are used as positive numbers and the resulting offset is subtracted.
    """
    lost, size, copied = norms[:3].sqrt()
    sums = (inputs + 16) * size + (2 * inputs / BLOCK + 8) * 512 * norms[3] * math.sqrt(inputs)
    return ((lost + UNIT * sums) * (1 + 1e-5)).float(), (copied * (1 + 1e-5)).float()


def likely(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the largest log-probabilities of each row, largest first, and their columns: [..., v] -> [..., count].

    They are in float32 or wider. `count` is at most v.
    """
    if logits.dtype == torch.float32 and logits.is_cpu and logits.is_contiguous() and are_loaded():
        return rank(logits, count)
    best = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).topk(count)
    return best.values, best.indices


def rank(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Computes `likely` by native code, for contiguous float32 logits; ties in order of column."""
    width = logits.shape[-1]
    values = logits.new_empty(*logits.shape[:-1], count)
    columns = torch.empty_like(values, dtype=torch.int64)
    rows = logits.numel() // width
    load_native().specframe_rank(logits.data_ptr(), rows, width, count, values.data_ptr(), columns.data_ptr())
    return values, columns
