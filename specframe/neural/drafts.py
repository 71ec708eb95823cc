"""Where drafts behind a text stand, and what their tokens see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specframe.kernel.types import Drafts


def draft_positions(drafts: Drafts) -> Tensor:
    """The positions of the texts' tokens and of the drafts behind them: [B, L + levels K] int64."""
    batch, _ = drafts.roots.shape
    text = torch.arange(drafts.length, device=drafts.roots.device).expand(batch, -1)
    return torch.cat([text, *(drafts.roots + level for level in range(1, drafts.levels + 1))], 1)


def visible_drafts(drafts: Drafts) -> Tensor:
    """Who sees whom among the texts' tokens and the drafts behind them: [B, T, T] bool, T = L + levels K.

    A text is causal. A drafted token sees the text up to its root, those above it in its own chain, and itself.
    """
    batch, count = drafts.roots.shape
    device = drafts.roots.device
    text = torch.arange(drafts.length, device=device)
    chain = torch.arange(count, device=device).repeat(drafts.levels)  # [levels K]
    level = torch.arange(drafts.levels, device=device).repeat_interleave(count)
    own = (chain == chain[:, None]) & (level <= level[:, None])  # [levels K, levels K]
    above = text <= drafts.roots.repeat(1, drafts.levels)[..., None]  # [B, levels K, L]
    seen = torch.zeros(batch, *2 * (drafts.length + drafts.count,), dtype=torch.bool, device=device)
    seen[:, : drafts.length, : drafts.length] = text <= text[:, None]
    seen[:, drafts.length :, : drafts.length] = above
    seen[:, drafts.length :, drafts.length :] = own
    return seen
