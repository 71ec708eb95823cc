"""Additive attention masks for transformers' layers, from the visibility of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.types import Drafts
from specframe.native.visibility import Causal, Listed, Mask, Tree, Visibility
from specframe.neural.masks import draft_positions, visible_drafts


@dataclass(frozen=True)
class AttentionView:
    """Attention range of a layer type: a sliding window, a chunk, or everything."""

    window: int | None = None
    """Number of visible positions, the token itself included."""
    chunk: int | None = None
    """Chunk size: the visible positions start at its last multiple."""

    @property
    def limit(self) -> int | None:
        """Number of positions up to which everything is visible."""
        return self.window or self.chunk

    def for_length(self, length: int) -> AttentionView:
        """The view itself where it hides any of the given number of positions, else `ALL`."""
        return self if self.limit is not None and length > self.limit else ALL

    def hides(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns whether keys at positions [B or 1, 1, S] are hidden from queries at [B, N, 1]: [B, N, S]."""
        if self.window is not None:
            return queries - keys >= self.window
        if self.chunk is not None:
            return queries // self.chunk != keys // self.chunk
        return torch.zeros_like(queries, dtype=torch.bool)


ALL = AttentionView()


def masks_of(visibility: Visibility, positions: Tensor, views: Mapping[str, AttentionView], dtype: torch.dtype) -> Any:
    """One mask, or one per layer type for a decoder with several; None where transformers' own mask is equal.

    Types with the same view of these positions share a mask. A mask is 0 where a query at `positions` [B, N] may attend
    and -inf elsewhere, [B or 1, 1, N, S].
    """
    nearest = {kind: view.for_length(visibility.end) for kind, view in views.items()} or {"": ALL}
    made = {view: mask_of(visibility, positions, view, dtype) for view in dict.fromkeys(nearest.values())}
    if len(nearest) == 1 or all(mask is None for mask in made.values()):
        return next(iter(made.values()))
    return {kind: made[view] for kind, view in nearest.items()}


def options_of_drafts(
    drafts: Drafts, context: int, views: Mapping[str, AttentionView], dtype: torch.dtype
) -> dict[str, Any]:
    """The positions and masks of texts that end in drafts, as options of transformers' models."""
    positions = draft_positions(drafts).clamp(max=context - 1)
    masks = masks_of(Mask(visible_drafts(drafts), positions, positions), positions, views, dtype)
    return {"position_ids": positions, "attention_mask": masks}


def mask_of(visibility: Visibility, positions: Tensor, view: AttentionView, dtype: torch.dtype) -> Tensor | None:
    """The mask of one layer type, or None: see `masks_of`.

    Every node attends to itself, padding too, so no softmax is empty. Both sdpa and eager attention accept a float
    mask, which sdpa need not convert in every layer.
    """
    if isinstance(visibility, Causal):
        return _of_texts(visibility, positions, view, dtype)
    if isinstance(visibility, Tree):
        return _of_trees(visibility, positions, view, dtype)
    if isinstance(visibility, Listed):
        absent = (visibility.listed[0, :, :1] < 0).expand(-1, positions.shape[1], -1)  # [B, N, K]
        hidden = torch.cat([absent, ~visibility.path], 2)
        return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None]
    hidden = ~visibility.visible
    if view is not ALL:
        keys = torch.arange(visibility.end, device=positions.device).expand(len(positions), -1)  # [B, S]
        if visibility.drafted is not None:
            keys = torch.cat([keys[:, : visibility.end - visibility.drafted.shape[1]], visibility.drafted], 1)
        hidden = hidden | view.hides(positions[..., None], keys[:, None])
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None]


def _of_texts(visibility: Causal, positions: Tensor, view: AttentionView, dtype: torch.dtype) -> Tensor | None:
    """The mask of texts; None if transformers' own is correct, from the first token on or with full visibility."""
    count = positions.shape[1]
    if not visibility.start or (count == 1 and view is ALL):
        return None
    keys = torch.arange(visibility.end, device=positions.device)
    queries = keys[None, visibility.start :, None]  # [1, count, 1]
    hidden = (keys > queries) | view.hides(queries, keys[None, None])
    mask = torch.zeros(1, 1, count, visibility.end, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, -torch.inf)


def _of_trees(visibility: Tree, positions: Tensor, view: AttentionView, dtype: torch.dtype) -> Tensor | None:
    """The mask of trees. A committed token's slot is its position, so a window hides the first slots of a row."""
    batch, count = positions.shape
    base = visibility.base
    if count == 1 and visibility.even and view is ALL:
        return None
    mask = torch.zeros(batch, 1, count, visibility.end, dtype=dtype, device=positions.device)
    if count > 1:
        mask[:, 0, :, base:].masked_fill_(~visibility.sees, -torch.inf)
    if visibility.even and view is ALL:
        return mask
    slots = torch.arange(base, device=positions.device)
    if not visibility.even:
        gap = slots >= visibility.length[:, None]  # [B, base]
        mask[..., :base].masked_fill_(gap[:, None, None], -torch.inf)
    if view is not ALL:
        queries = positions[..., None]
        mask[:, 0, :, :base].masked_fill_(view.hides(queries, slots.expand(1, 1, -1)), -torch.inf)
        mask[:, 0, :, base:].masked_fill_(view.hides(queries, positions[:, None]), -torch.inf)
    return mask
