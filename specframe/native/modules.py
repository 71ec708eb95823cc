"""Modules that native code computes, alone or within whole drafts: a quantized LSTM, and a norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specframe.native.abi import Cell
from specframe.native.build import load_native
from specframe.native.linear import QuantizedLinear


class Cells:
    """The layers of an LSTM, each as its maps of input and hidden state to the four gates, without gradients.

    A row's result does not depend on other rows. In bfloat16 every operation is rounded.
    """

    longest = 16
    """Number of pairs up to which it is used; for more, as in a prompt, PyTorch's LSTM is faster."""

    def __init__(self, layers: Sequence[tuple[QuantizedLinear, QuantizedLinear]]) -> None:
        self._layers = tuple(layers)
        self.records = (Cell * len(layers))(*(Cell(into.record, back.record) for into, back in layers))
        """The layers as native code reads them."""

    def run(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the outputs [B, M, H] of x [B, M, I] and the states after it, given those before: [L, B, H] each."""
        batch, steps, _ = x.shape
        states = torch.stack((hidden, cell), 2).transpose(0, 1).float().contiguous()  # [B, L, 2, H]
        rows, out = x.float().contiguous(), torch.empty(batch, steps, hidden.shape[-1])
        load_native().specframe_recur(
            *(self.records, len(self.records), batch, steps, rows.data_ptr()),
            *(states.data_ptr(), x.dtype == torch.bfloat16, out.data_ptr()),
        )
        hidden, cell = states.to(x.dtype).transpose(0, 1).unbind(2)
        return out.to(x.dtype), (hidden.contiguous(), cell.contiguous())


class NativeNorm(nn.Module):
    """Llama's norm over rows of bfloat16 or float32: values over their root mean square, times a weight.

    A row's result does not depend on other rows. With gradients PyTorch computes it.

    Args:
        weight: [D], or [A, D] for A concatenated norms, each of its part of a row.
        epsilon: added to the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight: Tensor
        self.register_buffer("weight", weight.detach(), persistent=False)
        self._floats = self.weight.float().contiguous()  # as native code reads it

    def forward(self, x: Tensor) -> Tensor:
        """Maps [.., A D] to [.., A D], in the dtype of x."""
        width = self.weight.shape[-1]
        if torch.is_grad_enabled() and x.requires_grad:
            wide = x.unflatten(-1, (-1, width)).float()
            factor = (wide.pow(2).mean(-1, keepdim=True) + self.epsilon).rsqrt()
            normed: Tensor = self.weight * (wide * factor).to(x.dtype)
            return normed.flatten(-2)
        rows = x.float().contiguous()
        out = torch.empty_like(rows)
        load_native().specframe_normalize(
            *(rows.data_ptr(), self._floats.data_ptr(), self.epsilon, rows.numel() // width, width),
            *(self._floats.numel() // width, x.dtype == torch.bfloat16, out.data_ptr()),
        )
        return out.to(x.dtype)
