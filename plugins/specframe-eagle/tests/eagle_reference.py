"""EAGLE's forward and FSPAD's, restated number by number for layers of Llama's build: slow, and obviously right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from specframe.testing import literal_layer
from specframe_eagle.drafter import Eagle


def prediction(drafter: Eagle, features: Tensor, tokens: Tensor) -> Tensor:
    """The prediction after the last of the pairs features [n, D], tokens [n]: [D], or FSPAD's two halves [2D]."""
    layer = dict(drafter.module.layer.layer.named_parameters())
    config = drafter.target.config
    fused = [fuse(drafter, token, feature) for token, feature in zip(tokens, features, strict=True)]
    down = layer["mlp.down_proj.weight"]
    parts = []
    for half in down.split(len(fused[0])):  # one half is the whole without partial alignment
        halved = {**layer, "mlp.down_proj.weight": half}
        parts.append(literal_layer(halved, config, fused[-1], len(fused) - 1, fused, norm_input=False))
    return torch.cat(parts)


def fuse(drafter: Eagle, token: Tensor, feature: Tensor) -> Tensor:
    """The layer's input for a pair, [D]."""
    weights = dict(drafter.module.fc.named_parameters())
    embedding = drafter.target.embed(token)
    pair = torch.cat([embedding, feature])
    if "mlp.gate_proj.weight" not in weights:
        return weights["weight"] @ pair + weights.get("bias", 0)
    x = weights["fc.weight"] @ pair + weights.get("fc.bias", 0)
    eps = drafter.target.config.rms_norm_eps
    normed = weights["post_attention_layernorm.weight"] * x / (x.square().mean() + eps).sqrt()
    gate, up, down = (weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return x + down @ (silu(gate @ embedding) * (up @ normed))


def chain(drafter: Eagle, features: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """The prediction below a path of drafted tokens, [D] or [2D]: every feature is fed back as if true."""
    predicted = prediction(drafter, features, tokens)
    for token in drafted:
        features = torch.cat([features, predicted[None, -features.shape[1] :]])
        tokens = torch.cat([tokens, token[None]])
        predicted = prediction(drafter, features, tokens)
    return predicted
