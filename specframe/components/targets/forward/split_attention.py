"""Split attention: tree nodes attend to the prefix and to the tree separately, combined by their log-sum-exps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.forward.attention import attending_by
from specframe.native.visibility import Tree

LONG = 1024
"""Shortest prefix, in slots, for which attention is split; splitting does not pay after a shorter one."""
BENT = ("softcap", "s_aux", "sinks", "position_bias", "head_mask")
"""Options with which an attention function computes something other than softmax attention."""


@dataclass(frozen=True)
class SplitMasks:
    """Masks of a pass over trees: of the tree [B, 1, N, N], and of the prefix [B, 1, 1, C], None if all is visible.

    They are added to the attention logits.
    """

    tree: Tensor
    prefix: Tensor | None

    @classmethod
    def of(cls, visibility: Tree, dtype: torch.dtype) -> SplitMasks:
        """Makes the masks for trees whose nodes see what `visibility` states."""
        tree = torch.zeros(visibility.sees.shape, dtype=dtype, device=visibility.sees.device)
        tree = tree.masked_fill_(~visibility.sees, -torch.inf)[:, None]
        if visibility.even:
            return cls(tree, None)
        slots = torch.arange(visibility.base, device=tree.device)
        gap = slots >= visibility.length[:, None]  # [B, C]
        return cls(
            tree, torch.zeros(gap.shape, dtype=dtype, device=gap.device).masked_fill_(gap, -torch.inf)[:, None, None]
        )

    def whole(self, width: int) -> Tensor:
        """Returns one combined mask, [B, 1, N, C + N], for keys of C + N slots."""
        count = self.tree.shape[2]
        before = self.tree.new_zeros(1, 1, 1, width - count) if self.prefix is None else self.prefix
        return torch.cat([before.expand(len(self.tree), -1, count, -1), self.tree], 3)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Returns the attention of queries [B, H, N, D] to keys and values [B, G, C + N, D]: [B, N, H, D].

        Queries that share a key head are stacked in one column, so that no key is copied.
        """
        groups, base = key.shape[1], key.shape[2] - query.shape[2]
        column = query.unflatten(1, (groups, -1))  # [B, G, Q, N, D]
        shared = column.shape[2]
        folded = column.flatten(2, 3)
        before, one = _part(folded, key[:, :, :base], value[:, :, :base], scale, self.prefix)
        after, two = _part(folded, key[:, :, base:], value[:, :, base:], scale, self.tree.repeat(1, 1, shared, 1))
        share = torch.sigmoid(one - two)[..., None].to(before.dtype)  # weight of the prefix, [B, G, Q N, 1]
        mixed = torch.lerp(after, before, share)
        return mixed.unflatten(2, (shared, -1)).flatten(1, 2).transpose(1, 2).contiguous()


def _part(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the attention to some keys [B, G, M, D], and the logarithm of the sum of its weights [B, G, M]."""
    found, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, False, attn_mask=mask, scale=scale
    )
    return found, total


def split_attention(attentions: Sequence[nn.Module], masks: SplitMasks) -> AbstractContextManager[None]:
    """Splits the attention of these layers inside the context; other attention functions are unchanged."""

    def attend(
        own: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        bent = any(options.get(option) is not None for option in BENT) or rest
        if bent or key.shape[-1] != value.shape[-1]:
            return own(module, query, key, value, masks.whole(key.shape[2]), *rest, **options)
        scale = options.get("scaling")
        return masks.attend(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale), None

    return attending_by(attentions, attend)
