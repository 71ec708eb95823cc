"""EAGLE's forward, FSPAD's and Dovetail's, number by number for layers of Llama's build: slow, and obviously right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from specframe.testing import literal_layer
from specframe_eagle.drafter import Eagle


def prediction(drafter: Eagle, features: Tensor, tokens: Tensor) -> Tensor:
    """The prediction after the last of the pairs features [n, D], tokens [n]: [D], or FSPAD's two halves [2D]."""
    first, *upper = [dict(layer.named_parameters()) for layer in drafter.network.stack]
    config = drafter.target.config
    inputs = [fuse(drafter, token, feature) for token, feature in zip(tokens, features, strict=True)]
    if upper:  # then every pair has an output of the first layer, which the next one reads
        for number, layer in enumerate([first, *upper]):
            inputs = [
                literal_layer(layer, config, x, place, inputs[: place + 1], norm_input=number > 0)
                for place, x in enumerate(inputs)
            ]
        return inputs[-1]
    down = first["mlp.down_proj.weight"]
    parts = []
    for half in down.split(len(inputs[0])):  # one half is the whole without partial alignment
        halved = {**first, "mlp.down_proj.weight": half}
        parts.append(literal_layer(halved, config, inputs[-1], len(inputs) - 1, inputs, norm_input=False))
    return torch.cat(parts)


def fuse(drafter: Eagle, token: Tensor, feature: Tensor) -> Tensor:
    """The layer's input for a pair, [D]."""
    weights = dict(drafter.module.fc.named_parameters())
    embedding = drafter.target.embed(token)
    pair = torch.cat([embedding, feature])
    eps = drafter.target.config.rms_norm_eps
    if "gate.weight" in weights:
        normed = weights["norm.weight"] * embedding / (embedding.square().mean() + eps).sqrt()
        h1, h2 = weights["feature.weight"] @ feature, silu(weights["token.weight"] @ normed)
        z = torch.sigmoid(weights["gate.weight"] @ torch.cat([h1, h2]))
        return z * h1 + (1 - z) * h2
    if "mlp.gate_proj.weight" not in weights:
        return weights["weight"] @ pair + weights.get("bias", 0)
    x = weights["fc.weight"] @ pair + weights.get("fc.bias", 0)
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
