"""Tensors of the host's numbers on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specframe.kernel.transfer import sent


def tensor_on(device: torch.device | None, values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of these numbers, or lists of them, on the device, by default the CPU; the host does not wait for it."""
    return sent(torch.tensor(values, dtype=dtype), device)
