"""A drafter's decoder layer, Llama's, restated number by number, to hold fast code against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def literal_layer(
    weights: Mapping[str, Tensor],
    config: Any,
    x: Tensor,
    place: int,
    seen: Sequence[Tensor],
    *,
    norm_input: bool = True,
) -> Tensor:
    """The output [D] of a decoder layer for its input x [D] at `place`, which sees the inputs `seen` at 0, 1, 2, ...

    No batch, no mask and no cache: every given entry is visible. `weights` are the layer's own by transformers' names
    (`self_attn.q_proj.weight`, ...), attention biases and Qwen3's query and key norms where there are any; `config` is
    the target's. `norm_input=False` leaves out the norm before attention, as EAGLE does.
    """
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps

    def project(values: Tensor, which: str, count: int) -> Tensor:
        if norm_input:
            values = _norm(values, weights["input_layernorm.weight"], eps)
        out = weights[f"self_attn.{which}_proj.weight"] @ values
        out = (out + weights.get(f"self_attn.{which}_proj.bias", 0)).view(count, size)
        scale = weights.get(f"self_attn.{which}_norm.weight")
        return out if scale is None else torch.stack([_norm(head, scale, eps) for head in out])

    query = _rotate(project(x, "q", heads), place, config)
    keys = [_rotate(project(other, "k", groups), i, config) for i, other in enumerate(seen)]
    values = [project(other, "v", groups) for other in seen]
    mixed = []
    for head in range(heads):
        group = head * groups // heads
        scores = torch.stack([query[head] @ key[group] for key in keys]) / math.sqrt(size)
        shares = zip(scores.softmax(0), values, strict=True)
        mixed.append(torch.stack([share * value[group] for share, value in shares]).sum(0))
    x = x + weights["self_attn.o_proj.weight"] @ torch.cat(mixed)
    normed = _norm(x, weights["post_attention_layernorm.weight"], eps)
    gate, up, down = (weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return x + down @ (torch.nn.functional.silu(gate @ normed) * (up @ normed))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, in float32 as transformers has it whatever the weights' dtype."""
    short = x.float()
    return weight * (short * torch.rsqrt(short.square().mean() + eps)).to(x.dtype)


def _rotate(x: Tensor, place: int, config: Any) -> Tensor:
    """Rotary embedding of heads [H, d]: pairs (i, i + d/2) turned by place * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    theta = config.rope_parameters["rope_theta"]
    # transformers keeps the frequencies in float32, and rounds the angles there
    angle = place * (1.0 / theta ** (torch.arange(half, dtype=torch.float32) * 2 / x.shape[-1]))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
