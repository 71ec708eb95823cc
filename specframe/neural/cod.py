"""Conditional drop of mask rows (COD): which rows of deeper levels a training step keeps."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_rows(counts: Tensor, levels: int, keep: float, least: float) -> list[tuple[Tensor, Tensor]]:
    """The mask rows that are kept, level by level: their entries [B, M] int64, ascending, and which of the M there are.

    `counts` [B, n] bool: whether the prediction for entry i counts, and so that of the row d levels below entry i - d.
    A row is kept only where the one above it is. Level d keeps max(keep^d, least) of the places that count, less d
    (PARD, arXiv 2504.18583; P-EAGLE, 2602.01469). Rows are drawn by torch's own generator, as training does.
    """
    batch, n = counts.shape
    index = torch.arange(n, device=counts.device)
    chance = torch.rand(counts.shape, device=counts.device)  # one a row: the best of it at every level
    total = counts.sum(1)
    alive = torch.ones_like(counts)
    rows = []
    for level in range(1, min(levels, n)):
        alive = alive & torch.cat([counts[:, level:], counts.new_zeros(batch, level)], 1)
        size = ((total - level).clamp(min=0) * max(keep**level, least)).long()
        order = chance.masked_fill(~alive, -1.0).argsort(1, descending=True).argsort(1)
        alive = alive & (order < size[:, None])
        most = int(alive.sum(1).max())
        if most == 0:
            break
        entries = torch.where(alive, index, n).sort(1).values[:, :most]
        rows.append((entries.clamp(max=n - 1), entries < n))
    return rows
