"""EAGLE's forward, restated number by number for layers of Llama's build: slow, and obviously right."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specframe_eagle.drafter import Eagle


def next_feature(drafter: Eagle, features: Tensor, tokens: Tensor) -> Tensor:
    """The feature predicted after the last of the pairs features [n, D], tokens [n]: [D]."""
    weights = dict(drafter.module.named_parameters())
    pairs = torch.cat([drafter._target.embed(tokens), features], -1)  # [n, 2D], embedding first
    bias = weights.get("fc.bias", 0)
    fused = [weights["fc.weight"] @ pair + bias for pair in pairs]
    return layer(weights, drafter._target.config, fused)


def chain(drafter: Eagle, features: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """The feature predicted below a path of drafted tokens, [D]: every feature is fed back as if true."""
    predicted = next_feature(drafter, features, tokens)
    for token in drafted:
        features = torch.cat([features, predicted[None]])
        tokens = torch.cat([tokens, token[None]])
        predicted = next_feature(drafter, features, tokens)
    return predicted


def layer(weights: dict[str, Tensor], config: object, seen: list[Tensor]) -> Tensor:
    """The last position's output: no input norm, attention over all inputs, norm, gated MLP."""
    name = "layer.layer."
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def project(x: Tensor, which: str, count: int) -> Tensor:
        bias = weights.get(f"{name}self_attn.{which}_proj.bias", torch.zeros(count * size, dtype=x.dtype))
        out = (weights[f"{name}self_attn.{which}_proj.weight"] @ x + bias).view(count, size)
        scale = weights.get(f"{name}self_attn.{which}_norm.weight")  # Qwen3's
        return out if scale is None else torch.stack([norm(head, scale, config.rms_norm_eps) for head in out])

    last = len(seen) - 1
    query = rotate(project(seen[last], "q", heads), last, config)
    keys = [rotate(project(x, "k", groups), place, config) for place, x in enumerate(seen)]
    values = [project(x, "v", groups) for x in seen]
    mixed = []
    for head in range(heads):
        group = head * groups // heads
        scores = torch.stack([query[head] @ key[group] for key in keys]) / math.sqrt(size)
        mixed.append(sum(p * value[group] for p, value in zip(scores.softmax(0), values, strict=True)))
    x = seen[last] + weights[f"{name}self_attn.o_proj.weight"] @ torch.cat(mixed)
    normed = norm(x, weights[f"{name}post_attention_layernorm.weight"], config.rms_norm_eps)
    gate, up, down = (weights[f"{name}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return x + down @ (torch.nn.functional.silu(gate @ normed) * (up @ normed))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, in float32 as transformers has it whatever the weights' dtype."""
    short = x.float()
    return weight * (short * torch.rsqrt(short.square().mean() + eps)).to(x.dtype)


def rotate(x: Tensor, position: int, config: object) -> Tensor:
    """Rotary embedding of heads [H, d]: pairs (i, i + d/2) turned by position * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    theta = config.rope_parameters["rope_theta"]
    # transformers keeps the frequencies in float32, and rounds the angles there
    angle = position * (1.0 / theta ** (torch.arange(half, dtype=torch.float32) * 2 / x.shape[-1]))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
