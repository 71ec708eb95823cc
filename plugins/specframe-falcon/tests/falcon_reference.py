"""Falcon's forward, restated number by number for a Llama-shaped layer: slow, and obviously right."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specframe_falcon.drafter import Falcon


def block(drafter: Falcon, features: Tensor, tokens: Tensor) -> Tensor:
    """The features predicted by the block that ends at the last pair, [k, D].

    Pairs are features [n, D] and tokens [n]. Where there are fewer than k pairs, the positions before
    the first hold zeros instead of an LSTM output: they ask, but nobody sees them.
    """
    weights = dict(drafter.module.named_parameters())
    pairs = torch.cat([drafter._target.embed(tokens), features], -1)  # [n, 2D]
    seen = lstm(weights, pairs)
    count, k = len(seen), drafter.block
    asking = [(i, seen[i] if i >= 0 else torch.zeros_like(seen[0])) for i in range(count - k, count)]
    config = drafter._target.config
    return torch.stack([layer(weights, config, x, i, seen) for i, x in asking])


def path(drafter: Falcon, features: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """The features predicted below a path of drafted tokens (a multiple of k of them), [k, D].

    Every forward is one over the whole sequence: `predict`, which a test of its own holds to `block`,
    or `block` itself where there are fewer pairs than k.
    """
    for start in range(0, len(drafted) + 1, drafter.block):
        if len(tokens) < drafter.block:
            predicted = block(drafter, features, tokens)
        else:
            predicted = drafter.predict(features[None], tokens[None])[0, -drafter.block :]
        features = torch.cat([features, predicted])
        tokens = torch.cat([tokens, drafted[start : start + drafter.block]])
    return predicted


def lstm(weights: dict[str, Tensor], inputs: Tensor) -> list[Tensor]:
    """The second LSTM layer's output after every input."""
    outputs = list(inputs)
    for depth in range(2):
        names = [f"lstm.{name}_l{depth}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        into, back, bias_into, bias_back = (weights[name] for name in names)
        hidden = cell = into.new_zeros(back.shape[1])
        for index, x in enumerate(outputs):
            gates = into @ x + bias_into + back @ hidden + bias_back
            enter, forget, content, leave = gates.chunk(4)
            cell = forget.sigmoid() * cell + enter.sigmoid() * content.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            outputs[index] = hidden
    return outputs


def layer(weights: dict[str, Tensor], config: object, x: Tensor, position: int, seen: list[Tensor]) -> Tensor:
    """A Llama decoder layer's output for x at `position`, which sees the inputs `seen` at 0, 1, 2, .."""
    name = "layer.layer."
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads

    def project(values: Tensor, which: str, count: int) -> Tensor:
        normed = norm(values, weights[name + "input_layernorm.weight"], config.rms_norm_eps)
        return (weights[name + f"self_attn.{which}_proj.weight"] @ normed).view(count, size)

    query = rotate(project(x, "q", heads), position, config)
    keys = [rotate(project(other, "k", groups), i, config) for i, other in enumerate(seen)]
    values = [project(other, "v", groups) for other in seen]
    mixed = []
    for head in range(heads):
        group = head * groups // heads
        scores = torch.stack([query[head] @ key[group] for key in keys]) / math.sqrt(size)
        mixed.append(sum(p * value[group] for p, value in zip(scores.softmax(0), values, strict=True)))
    x = x + weights[name + "self_attn.o_proj.weight"] @ torch.cat(mixed)
    normed = norm(x, weights[name + "post_attention_layernorm.weight"], config.rms_norm_eps)
    gate, up, down = (weights[name + f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return x + down @ (torch.nn.functional.silu(gate @ normed) * (up @ normed))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, in float32 as transformers has it whatever the weights' dtype."""
    short = x.float()
    return weight * (short / (short.square().mean() + eps).sqrt()).to(x.dtype)


def rotate(x: Tensor, position: int, config: object) -> Tensor:
    """Rotary embedding of heads [H, d]: pairs (i, i + d/2) turned by position * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    theta = config.rope_parameters["rope_theta"]
    # transformers keeps the frequencies in float32, and rounds the angles there
    frequency = 1.0 / theta ** (torch.arange(half, dtype=torch.float32) * 2 / x.shape[-1])
    angle = position * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
