"""The likeliest tokens: of logits, and of an LM head without its logits, most of which a copy in 8 bits rules out."""

from __future__ import annotations

import ctypes
import math
from ctypes import Structure, c_int64, c_void_p
from typing import TypeGuard

import torch
from torch import Tensor

from specframe.native.blocks import BLOCK, TILE
from specframe.native.bounds import check_integers, check_numbers
from specframe.native.build import Weight, are_loaded, load_native
from specframe.native.linear import QuantizedLinear

UNKNOWN = 1e30
"""Bound of outputs that a head's last tile does not have, which are never the largest."""
UNIT = 2.0**-24
"""Largest relative error of an operation in float32."""


class _Screen(Structure):
    _fields_ = (("exact", Weight), ("copy", Weight), ("lost", c_void_p), ("kept", c_void_p))


class Choice(Structure):
    """The ends of a pass that runs from tokens to their likeliest successors, as native code takes them."""

    _fields_ = (
        *(("table", c_void_p), ("tokens", c_void_p), ("halves", c_int64)),
        *(("screen", c_void_p), ("last", c_void_p), ("best", c_void_p)),
    )


class Screen:
    """An LM head in 16 or 32 bits with its copy in 8, which finds the largest logit bit for bit.

    It reads the copy whole, and of the head the tiles whose logits may be the largest by the copy, a few: for
    each token the rounding of weights and states moves a logit by a bounded amount (Cauchy and Schwarz).
    """

    def __init__(self, head: QuantizedLinear) -> None:
        """A head that `can_screen`."""
        self.head, self.copy = head, QuantizedLinear.empty(head.out_features, head.in_features, 8)
        norms = torch.zeros(4, len(head.packed) * TILE, dtype=torch.float64)
        record = head.record
        load_native().specframe_copy(ctypes.byref(record), self.copy.packed.data_ptr(), norms.data_ptr())
        self._lost, self._kept = _bounds(norms, head.in_features)  # [tiles * TILE] each
        self._lost[head.out_features :] = UNKNOWN
        self._record = _Screen(head.record, self.copy.record, self._lost.data_ptr(), self._kept.data_ptr())

    def bounds(self, states: Tensor) -> Tensor:
        """The most that logits by the copy are off by, for states [M, K]: [M, N], to within the last bits."""
        off = (states.float() - _rounded(states)).norm(dim=-1)[:, None]
        found: Tensor = self._lost * states.float().norm(dim=-1)[:, None] + self._kept * off
        return found[:, : self.head.out_features]

    def likeliest(self, states: Tensor) -> Tensor:
        """The first token of the largest logit of each state, [.., D] -> [..] int64; -1 where that is not a number."""
        rows = states.float().contiguous()
        best = torch.empty(rows.shape[:-1], dtype=torch.int64)
        check_numbers((rows,))
        if rows.shape[-1] != self.head.in_features:
            raise ValueError(f"the head takes {self.head.in_features} numbers a state, not {rows.shape[-1]}")
        load_native().specframe_likeliest(ctypes.byref(self._record), rows.data_ptr(), best.numel(), best.data_ptr())
        return best

    def choice(self, table: Tensor, tokens: Tensor, last: Tensor, best: Tensor) -> Choice:
        """A pass over tokens [B, N], by a table of embeddings [V, D], to states `last` [B, N, D] and `best` [B, N].

        Raises ValueError for tensors that native code would read or write beyond, or take for something else.
        """
        check_integers("tokens", tokens, tokens.shape, len(table))
        check_numbers((table, last), torch.bfloat16 if table.dtype == torch.bfloat16 else torch.float32)
        if not last.shape[-1] == table.shape[-1] == self.head.in_features or last.shape[:-1] != tokens.shape:
            raise ValueError(f"states are {[*tokens.shape, self.head.in_features]}, not {list(last.shape)}")
        if best.dtype != torch.int64 or best.shape != tokens.shape or not tokens.is_contiguous():
            raise ValueError(f"the likeliest tokens are int64 {list(tokens.shape)}, behind contiguous tokens")
        return Choice(
            table=table.data_ptr(),
            tokens=tokens.data_ptr(),
            halves=table.dtype == torch.bfloat16,
            screen=ctypes.addressof(self._record),
            last=last.data_ptr(),
            best=best.data_ptr(),
        )


def _rounded(states: Tensor) -> Tensor:
    """States [M, K] as products with the copy take them: rounded to 8 bits in blocks."""
    blocks = states.float().unflatten(-1, (-1, BLOCK))
    steps = blocks.abs().amax(-1, keepdim=True) / 127
    return ((blocks / steps.where(steps > 0, 1.0)).round() * steps).flatten(-2)


def can_screen(head: object) -> TypeGuard[QuantizedLinear]:
    """Returns whether a head's largest logit can be found by a copy: one in floats, without bias, of finite weights.

    The matrix of a head in 4 or 8 bits is no larger than a copy.
    """
    return (
        isinstance(head, QuantizedLinear)
        and head.bits >= 16
        and head.bias is None
        and head.packed.is_cpu
        and bool(head.packed.view(torch.bfloat16 if head.bits == 16 else torch.float32).abs().amax() < 1e4)
    )


def _bounds(norms: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    """Bounds of an output's error by the norms of a state and of what rounding takes from it, [N] each.

    Given [4, N] float64: the squared norms of what rounding takes from an output's weights, of these, of their copy,
    and its largest scale. The first bound has what the sums of floats may be off by, too: of the head's products, and
    of the copy's, where the codes are taken as positive, and what that adds is subtracted.
    """
    lost, size, kept = norms[:3].sqrt()
    sums = (inputs + 16) * size + (2 * inputs / BLOCK + 8) * 512 * norms[3] * math.sqrt(inputs)
    return ((lost + UNIT * sums) * (1 + 1e-5)).float(), (kept * (1 + 1e-5)).float()


def likely(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest log-probabilities of each row, largest first, and their columns: [..., v] -> [..., count] each.

    In float32 or better. `count` is v at most.
    """
    if logits.dtype == torch.float32 and logits.is_cpu and logits.is_contiguous() and are_loaded():
        return rank(logits, count)
    best = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).topk(count)
    return best.values, best.indices


def rank(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same natively, for contiguous float32 logits; ties in order of column."""
    width = logits.shape[-1]
    values = logits.new_empty(*logits.shape[:-1], count)
    columns = torch.empty_like(values, dtype=torch.int64)
    rows = logits.numel() // width
    load_native().specframe_rank(logits.data_ptr(), rows, width, count, values.data_ptr(), columns.data_ptr())
    return values, columns
