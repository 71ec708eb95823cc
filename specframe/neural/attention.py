"""Attention along whole texts in training, as products of whole matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

ALONG_TEXTS = "specframe_along_texts"
"""The name under which transformers' layers find `attend`."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return value of transformers' attention functions: the mixed values, [B, n, heads, d], and no weights.

    On a CPU PyTorch's attention takes no bfloat16 instructions in its backward pass. Over a few hundred tokens,
    products of whole matrices take half to a quarter of the time.

    Without a mask, entries attend causally to the first n keys, and entry i to key i of every further n: those are of
    later steps of a training-time test (EAGLE-3), the last of them its own.

    Args:
        module: the attention layer; nothing of it is read.
        query: [B, heads, n, d].
        key: [B, key heads, S, d]; S is a multiple of n without a mask.
        value: as `key`.
        attention_mask: [B or 1, 1, n, S] bool, True where an entry sees a key; None: as above.
        scaling: of the products; None: 1 / sqrt(d).
        dropout: of the weights, 0 in every layer that a drafter has.
    """
    n, size = query.shape[2], query.shape[3]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    query = query * (size**-0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = (query @ key.transpose(2, 3)).masked_fill(~attention_mask, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None
    causal = torch.ones(n, n, dtype=torch.bool, device=query.device).tril()
    scores = (query @ key[:, :, :n].transpose(2, 3)).masked_fill(~causal, -torch.inf)
    if key.shape[2] == n:
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None
    own_keys, own_values = (part[:, :, n:].unflatten(2, (-1, n)) for part in (key, value))  # [B, heads, steps, n, d]
    own = (query[:, :, None] * own_keys).sum(-1).transpose(2, 3)  # [B, heads, n, steps]
    weights = torch.cat([scores, own], -1).softmax(-1)
    mixed = weights[..., :n] @ value[:, :, :n]
    mixed = mixed + (weights[..., n:].transpose(2, 3)[..., None] * own_values).sum(2)
    return mixed.transpose(1, 2).contiguous(), None


def visible_steps(length: int, steps: int, device: torch.device) -> Tensor:
    """The entries that each query of `attend` sees without a mask: [1, 1, n, steps n] bool."""
    own = torch.eye(length, dtype=torch.bool, device=device)
    return torch.cat([torch.ones_like(own).tril(), *[own] * (steps - 1)], 1)[None, None]


@contextmanager
def along_texts(config: Any) -> Iterator[None]:
    """Within the block, layers of this config attend by `attend`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ALONG_TEXTS, attend)
    before = config._attn_implementation
    config._attn_implementation = ALONG_TEXTS
    try:
        yield
    finally:
        config._attn_implementation = before
