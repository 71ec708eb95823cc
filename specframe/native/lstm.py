"""An LSTM with weights for the kernels, by which drafters carry a state from pair to pair."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure

import torch
from torch import Tensor

from specframe.native.build import Weight, load_kernels
from specframe.native.linear import QuantizedLinear


class _Cell(Structure):
    _fields_ = (("into", Weight), ("back", Weight))


class Cells:
    """The layers of an LSTM, each by its maps of input and hidden state to the four gates, without gradients.

    A row's result does not depend on the rows next to it. In bfloat16 every operation is rounded.
    """

    def __init__(self, layers: Sequence[tuple[QuantizedLinear, QuantizedLinear]]) -> None:
        self._layers = tuple(layers)
        self.records = (_Cell * len(layers))(*(_Cell(into.record, back.record) for into, back in layers))
        """The layers as the kernels take them."""

    def run(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The outputs [B, M, H] of x [B, M, I] and the states after it, given those before: [L, B, H] each."""
        batch, steps, _ = x.shape
        states = torch.stack((hidden, cell), 2).transpose(0, 1).float().contiguous()  # [B, L, 2, H]
        rows, out = x.float().contiguous(), torch.empty(batch, steps, hidden.shape[-1])
        load_kernels().specframe_recur(
            ctypes.byref(self.records),
            *(len(self.records), batch, steps, rows.data_ptr()),
            *(states.data_ptr(), x.dtype == torch.bfloat16, out.data_ptr()),
        )
        hidden, cell = states.to(x.dtype).transpose(0, 1).unbind(2)
        return out.to(x.dtype), (hidden.contiguous(), cell.contiguous())
