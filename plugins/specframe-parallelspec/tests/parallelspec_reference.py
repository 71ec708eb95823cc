"""ParallelSpec's forward restated: number by number for a Llama-shaped layer, and in the layout of Figure 3."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specframe_parallelspec.drafter import ParallelSpec


def group(drafter: ParallelSpec, features: Tensor, tokens: Tensor) -> Tensor:
    """What the group behind the pairs features [n, D], tokens [n] predicts, one member after the other: [1 + K, D].

    Section 4.1: the sequence, then [MASK] 1 .. [MASK] k; the last of them speaks.
    """
    weights = dict(drafter.module.named_parameters())
    seen = list(entries(drafter, features, drafter._target.embed(tokens)))
    spoken = [layer(drafter, weights, seen)]
    for mask in weights["masks"]:
        seen.append(entries(drafter, features[-1], mask))
        spoken.append(layer(drafter, weights, seen))
    if not drafter.features:
        eps = drafter._target.config.rms_norm_eps
        spoken = [weights["norm.weight"] * x / (x.square().mean() + eps).sqrt() for x in spoken]
    return torch.stack(spoken)


def path(drafter: ParallelSpec, features: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """What is predicted below a path of drafted tokens, a multiple of 1 + K of them: [1 + K, D].

    The path's tokens become entries, each beside the feature predicted for its parent; the [MASK]s are gone.
    """
    predicted = group(drafter, features, tokens)
    for start in range(0, len(drafted), drafter.levels):
        features = torch.cat([features, predicted])
        tokens = torch.cat([tokens, drafted[start : start + drafter.levels]])
        predicted = group(drafter, features, tokens)
    return predicted


def entries(drafter: ParallelSpec, features: Tensor, embedded: Tensor) -> Tensor:
    """The layer's inputs for pairs of a feature and the embedding of what follows it: [.., D], [.., D] -> [.., D]."""
    if not drafter.features:
        return embedded
    weights = dict(drafter.module.named_parameters())
    return torch.cat([embedded, features], -1) @ weights["fc.weight"].T + weights["fc.bias"]


def figure(drafter: ParallelSpec, features: Tensor, tokens: Tensor) -> Tensor:
    """All groups of texts [B, n] in one dense forward, as Figure 3 draws it: [B, n, 1 + K, D].

    Sequence: entry, its [MASK]s, next entry, its [MASK]s, ..; positions go on from each entry.
    """
    network, batch, n, k = drafter.module, len(tokens), tokens.shape[1], drafter.levels
    masks = network.masks.expand(batch, n, -1, -1)
    embedded = torch.cat([drafter._target.embed(tokens)[:, :, None], masks], 2)  # [B, n, k, D]
    sequence = entries(drafter, features[:, :, None].expand_as(embedded), embedded).flatten(1, 2)  # [B, n k, D]
    owner = torch.arange(n).repeat_interleave(k)
    member = torch.arange(k).repeat(n)
    allowed = torch.zeros(n * k, n * k, dtype=torch.bool)
    for query in range(n * k):
        for key in range(query + 1):
            allowed[query, key] = bool(member[key] == 0 or owner[key] == owner[query])
    out = network.layer(sequence, (owner + member).expand(batch, -1), allowed[None, None])
    return network.norm(out).unflatten(1, (n, k))


def layer(drafter: ParallelSpec, weights: dict[str, Tensor], seen: list[Tensor]) -> Tensor:
    """The last position's output: attention over all inputs, norm, gated MLP; an input norm without features."""
    config, name = drafter._target.config, "layer.layer."
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads

    def project(x: Tensor, which: str, count: int) -> Tensor:
        if not drafter.features:
            x = norm(x, weights[f"{name}input_layernorm.weight"], config.rms_norm_eps)
        return (weights[f"{name}self_attn.{which}_proj.weight"] @ x).view(count, size)

    last = len(seen) - 1
    query = rotate(project(seen[last], "q", heads), last, config)
    keys = [rotate(project(x, "k", groups), place, config) for place, x in enumerate(seen)]
    values = [project(x, "v", groups) for x in seen]
    mixed = []
    for head in range(heads):
        shared = head * groups // heads
        scores = torch.stack([query[head] @ key[shared] for key in keys]) / math.sqrt(size)
        mixed.append(sum(p * value[shared] for p, value in zip(scores.softmax(0), values, strict=True)))
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
