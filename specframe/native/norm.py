"""A root mean square norm that the kernels compute, by itself and within whole drafts alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specframe.native.build import load_kernels


class NativeNorm(nn.Module):
    """Llama's norm over rows of bfloat16 or float32: numbers over their root mean square, times a weight.

    A row's result does not depend on the rows next to it. With gradients PyTorch computes it.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight: Tensor
        self.register_buffer("weight", weight.detach(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[.., D] -> [.., D], in the dtype of x."""
        if torch.is_grad_enabled() and x.requires_grad:
            wide = x.float()
            factor = (wide.pow(2).mean(-1, keepdim=True) + self.epsilon).rsqrt()
            return self.weight * (wide * factor).to(x.dtype)
        rows = x.float().contiguous()
        out, width, weight = torch.empty_like(rows), x.shape[-1], self.weight.float()
        halves = x.dtype == torch.bfloat16
        load_kernels().specframe_normalize(
            rows.data_ptr(), weight.data_ptr(), self.epsilon, rows.numel() // width, width, halves, out.data_ptr()
        )
        return out.to(x.dtype)
