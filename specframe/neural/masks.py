"""Attention masks that drafters share."""

from __future__ import annotations

import torch
from torch import Tensor


def block_end(length: int, block: int, device: torch.device | str | None = None) -> Tensor:
    """The last position of each position's block, [length] int64.

    Blocks of `block` positions end at the last position and at every `block`-th before it; the first
    one is short when `length` is no multiple of `block`.
    """
    position = torch.arange(length, device=device)
    return position + (length - 1 - position) % block


def block_causal(length: int, block: int, device: torch.device | str | None = None) -> Tensor:
    """Who sees whom under Falcon's relaxed causal mask, [1, 1, length, length] bool (Falcon, Section 3.4).

    A position sees its own block, later positions of it included, and all before it; see `block_end`
    for where blocks end. `block` 1 is the plain causal mask.
    """
    key = torch.arange(length, device=device)
    return (key <= block_end(length, block, device)[:, None])[None, None]
