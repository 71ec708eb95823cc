"""The most probable columns of logits, in one native call where native code is in use."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.native.build import are_loaded, load_native


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
