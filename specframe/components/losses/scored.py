"""What every loss needs: the teacher at the student's positions, and the mean over what counts."""

from __future__ import annotations

import torch
from torch import Tensor


def at(teacher: Tensor, position: Tensor) -> Tensor:
    """The teacher's values where the student's predictions stand: [B, L, ...], [B, M] -> [B, M, ...]."""
    rows = torch.arange(len(position), device=position.device)[:, None]
    return teacher[rows, position]


def mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of values [B, M] over mask [B, M], a scalar; 0 when nothing is masked in."""
    return torch.where(mask, values, 0).sum() / mask.sum().clamp(min=1)


def log_law(logits: Tensor) -> Tensor:
    """log softmax over the vocabulary, in float32 or better: half precision would lose the tail."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
