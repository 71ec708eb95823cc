"""Recurrence of an LSTM layer along whole texts, for training on a CPU.

The contribution of the inputs is one product for all steps, computed by the caller; a step is one product with the
hidden state and a few sums. In the backward pass, all factors that do not depend on later steps are computed for all
steps at once, and the weights' gradient is one product at the end. oneDNN's backward pass of nn.LSTM takes several
times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def recur(gates: Tensor, back: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the hidden states of all steps, [B, L, H], and the last hidden and cell state, [B, H] each.

    Args:
        gates: contribution of the layer's input and biases to the gates, [B, L, 4H], in nn.LSTM's order.
        back: the matrix from the hidden state to the gates, [4H, H].
        hidden: the state before the first step, [B, H]; it gets no gradients.
        cell: as `hidden`.
    """
    outputs, last = _Recurrence.apply(gates, back, hidden, cell)
    return outputs, outputs[:, -1], last


class _Recurrence(torch.autograd.Function):
    """The sequence of steps; states in float32 or wider, products in the dtype of the gates."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, back: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the hidden states, [B, L, H], in the dtype of the gates, and the last cell state."""
        batch, length, width = gates.shape
        size = width // 4
        product = gates.dtype
        wide = torch.promote_types(product, torch.float32)
        steps = gates.transpose(0, 1).to(wide, copy=True).contiguous()  # [L, B, 4H], activated in place
        hiddens = torch.empty(length + 1, batch, size, dtype=product, device=gates.device)
        cells = torch.empty(length + 1, batch, size, dtype=wide, device=gates.device)
        hiddens[0], cells[0] = hidden, cell
        turned = back.to(product).T.contiguous()  # [H, 4H]
        for step in range(length):
            now = steps[step]
            now += hiddens[step] @ turned
            enter, forget, content, leave = now.view(batch, 4, size).unbind(1)
            now.view(batch, 4, size)[:, :2].sigmoid_()
            content.tanh_()
            leave.sigmoid_()
            torch.addcmul(forget * cells[step], enter, content, out=cells[step + 1])
            hiddens[step + 1] = leave * cells[step + 1].tanh()
        ctx.save_for_backward(steps, cells, hiddens, back)
        return hiddens[1:].transpose(0, 1).contiguous(), cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Returns the gradients of the gates and of the matrix."""
        steps, cells, hiddens, back = ctx.saved_tensors
        length, batch, width = steps.shape
        size = width // 4
        wide, product = steps.dtype, hiddens.dtype
        enter, forget, content, leave = steps.view(length, batch, 4, size).unbind(2)
        mouth = cells[1:].tanh()
        through = leave * (1 - mouth.square())  # derivative of a hidden state by its cell
        factors = torch.stack(  # derivatives of a cell, and for the last gate of the hidden state, by the gates' inputs
            [
                content * enter * (1 - enter),
                cells[:-1] * forget * (1 - forget),
                enter * (1 - content.square()),
                mouth * leave * (1 - leave),
            ],
            2,
        )  # [L, B, 4, H]
        outer = upstream[0].transpose(0, 1).to(wide)  # [L, B, H]
        matrix = back.to(product)
        entering = torch.empty_like(factors, dtype=product)
        d_cell = upstream[1].to(wide)
        d_hidden = torch.zeros_like(d_cell)
        for step in range(length - 1, -1, -1):
            d_hidden = outer[step] + d_hidden
            d_cell = torch.addcmul(d_cell, d_hidden, through[step])
            now = factors[step]
            now[:, :3] *= d_cell[:, None]
            now[:, 3] *= d_hidden
            entering[step] = now
            d_hidden = (entering[step].view(batch, width) @ matrix).to(wide)
            d_cell = d_cell * forget[step]
        flat = entering.view(length * batch, width)
        d_back = flat.T @ hiddens[:-1].reshape(length * batch, size)
        return entering.view(length, batch, width).transpose(0, 1), d_back.to(back.dtype), None, None
