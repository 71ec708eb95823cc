"""Parallel groups in training: their attention mask, and the text's keys and values that all groups share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


def visible(first: int, last: int, masks: int, device: torch.device | str | None = None) -> Tensor:
    """Returns the attention mask of the [MASK]s of groups first .. last - 1: [G K, last + G K] bool.

    G = last - first and K = `masks`. The keys are the text's first `last` entries, followed by the [MASK]s, group by
    group. [MASK] k of the group that starts at entry i sees the text up to i and the [MASK]s 1 .. k of its own group,
    never those of another (ParallelSpec, Figure 3).
    """
    group = torch.arange(first, last, device=device).repeat_interleave(masks)  # [G K]
    number = torch.arange(masks, device=device).repeat(last - first)
    text = torch.arange(last, device=device) <= group[:, None]
    own = (group == group[:, None]) & (number <= number[:, None])
    return torch.cat([text, own], 1)


def places(first: int, last: int, masks: int, device: torch.device | str | None = None) -> Tensor:
    """Returns the [MASK]s' positions in the text, [G K] int64: [MASK] k of group i at i + k, as in decoding."""
    offsets = torch.arange(1, masks + 1, device=device)
    return (torch.arange(first, last, device=device)[:, None] + offsets).flatten()


class GroupCache(Cache):
    """The text's keys and values, with gradients: written by the first forward pass, visible to later ones.

    `seen` is the number of text entries that a later pass sees; its own entries follow these and are not kept.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.text: tuple[Tensor, Tensor] | None = None  # [B, H, n, D] each
        self.seen = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Returns the keys and values that this pass's queries may see, [B, H, S, D] each."""
        if self.text is None:
            self.text = key_states, value_states
            return self.text
        keys, values = (part[:, :, : self.seen] for part in self.text)
        return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)
