"""EAGLE-3's forward, restated number by number: slow, and obviously right."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import silu

from specframe.testing import literal_layer
from specframe_eagle.eagle3 import Eagle3, Published3


def chain(drafter: Eagle3, taps: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """The logits below a path of drafted tokens, [v], given the taps [n, A H] and the tokens [n] after them."""
    weights = tensors(drafter)
    states = [fuse(drafter, weights, features) for features in taps]
    out = forward(drafter, weights, states, list(tokens))
    for token in drafted:
        states.append(normed(drafter, out, weights["norm.weight"]) if drafter.layout.switches.norm_output else out)
        tokens = torch.cat([tokens, token[None]])
        out = forward(drafter, weights, states, list(tokens))
    return weights["lm_head.weight"] @ normed(drafter, out, weights["norm.weight"])


def tensors(drafter: Eagle3) -> dict[str, Tensor]:
    """The drafter's weights by their published names; the LM head is the target's where it has none."""
    found = dict(Published3(drafter.network, drafter.layout, drafter.target).state_dict())
    if "lm_head.weight" not in found:
        units = torch.eye(drafter.target.config.hidden_size, dtype=drafter.target.dtype)
        found["lm_head.weight"] = drafter.logits(units).T
    return {name.replace("layers.0.", "midlayer."): tensor.detach() for name, tensor in found.items()}


def fuse(drafter: Eagle3, weights: dict[str, Tensor], taps: Tensor) -> Tensor:
    """The first state, [H]."""
    switches, size = drafter.layout.switches, drafter.target.config.hidden_size
    if switches.fc_norm:
        parts = taps.split(size)
        taps = torch.cat([normed(drafter, part, weights[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)])
    if switches.norm_before_fc:
        taps = normed(drafter, taps, weights["input_norm.weight"])
    return weights["fc.weight"] @ taps


def forward(drafter: Eagle3, weights: dict[str, Tensor], states: list[Tensor], tokens: list[Tensor]) -> Tensor:
    """The next state after the last of the pairs, [H]: no batch, no mask, no cache."""
    upper = [dict(layer.named_parameters()) for layer in drafter.network.layer.layers[1:]]
    if not upper:
        return wide(drafter, weights, states, tokens)
    outputs = [wide(drafter, weights, states[:end], tokens[:end]) for end in range(1, len(states) + 1)]
    for layer in upper:
        shape = drafter.layout.shape
        outputs = [literal_layer(layer, shape, x, place, outputs[: place + 1]) for place, x in enumerate(outputs)]
    return outputs[-1]


def wide(drafter: Eagle3, weights: dict[str, Tensor], states: list[Tensor], tokens: list[Tensor]) -> Tensor:
    """The output of the first layer for the last of the pairs, [H]."""
    shape = drafter.layout.shape
    part = {name.removeprefix("midlayer."): tensor for name, tensor in weights.items()}
    rows = []
    for state, token in zip(states, tokens, strict=True):
        embedding = normed(drafter, drafter.target.embed(token), part["input_layernorm.weight"])
        rows.append(torch.cat([embedding, normed(drafter, state, part["hidden_norm.weight"])]))
    size = shape.head_dim
    last = len(rows) - 1

    def heads(row: Tensor, which: str) -> Tensor:
        out = (part[f"self_attn.{which}_proj.weight"] @ row).view(-1, size)
        scale = part.get(f"self_attn.{which}_norm.weight")
        return out if scale is None else torch.stack([normed(drafter, head, scale) for head in out])

    query = turned(heads(rows[-1], "q"), last, drafter)
    keys = torch.stack([turned(heads(row, "k"), place, drafter) for place, row in enumerate(rows)])  # [n, kv, d]
    values = torch.stack([heads(row, "v") for row in rows])
    mixed = []
    for number, head in enumerate(query):
        group = number * keys.shape[1] // len(query)
        shares = (keys[:, group] @ head / sqrt(size)).softmax(0)
        mixed.append(shares @ values[:, group])
    residual = rows[-1][len(states[-1]) :] if drafter.layout.switches.norm_before_residual else states[-1]
    y = residual + part["self_attn.o_proj.weight"] @ torch.cat(mixed)
    inner = normed(drafter, y, part["post_attention_layernorm.weight"])
    gate, up, down = (part[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return y + down @ (silu(gate @ inner) * (up @ inner))


def normed(drafter: Eagle3, x: Tensor, weight: Tensor) -> Tensor:
    """The root mean square norm."""
    return weight * x / (x.square().mean() + drafter.layout.shape.rms_norm_eps).sqrt()


def turned(heads: Tensor, place: int, drafter: Eagle3) -> Tensor:
    """Heads [h, d] with the rotary embedding of a position."""
    size = heads.shape[-1]
    theta = drafter.layout.shape.rope_parameters["rope_theta"]
    angles = place / theta ** (torch.arange(0, size, 2, dtype=heads.dtype) / size)
    a, b = heads.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
