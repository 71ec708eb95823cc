"""The forward pass of a block, restated number by number: slow, and obviously right."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from specframe_blocks.dflash.dflash import DFlash


def block(drafter: DFlash, taps: Tensor, root: Tensor) -> Tensor:
    """The input of the LM head for a block below a root, [K, H], given the taps [n, A H] before it."""
    plan, shape = drafter.layout.plan, drafter.layout.shape
    weights = {name: tensor.detach() for name, tensor in drafter.network.state_dict().items()}
    eps, theta = shape.rms_norm_eps, shape.rope_parameters["rope_theta"]
    context = [normed(weights["fc.weight"] @ row, weights["hidden_norm.weight"], eps) for row in taps]
    mask = torch.full_like(root, plan.mask)
    rows = [drafter.target.embed(token) for token in [root, *[mask] * (plan.size - 1)]]
    for layer in range(shape.num_hidden_layers):
        part = {
            name.removeprefix(f"layers.{layer}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        before = [normed(row, part["input_layernorm.weight"], eps) for row in rows]
        seen = [*context, *before]
        keys = [heads(part, "k", row, eps) for row in seen]
        keys = [turned(key, place, theta) for place, key in enumerate(keys)]
        values = [heads(part, "v", row, eps) for row in seen]
        out = []
        for number, row in enumerate(before):
            place = len(context) + number
            query = turned(heads(part, "q", row, eps), place, theta)
            last = place if plan.causal else len(seen) - 1
            mixed = []
            for head, one in enumerate(query):
                group = head * len(keys[0]) // len(query)
                scores = torch.stack([key[group] @ one / sqrt(len(one)) for key in keys[: last + 1]])
                shares = scores.softmax(0)
                mixed.append(sum(share * value[group] for share, value in zip(shares, values, strict=False)))
            y = rows[number] + part["self_attn.o_proj.weight"] @ torch.cat(mixed)
            inner = normed(y, part["post_attention_layernorm.weight"], eps)
            gate, up, down = (part[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
            out.append(y + down @ (silu(gate @ inner) * (up @ inner)))
        rows = out
    states = torch.stack([normed(row, weights["norm.weight"], eps) for row in rows])
    return states if plan.from_anchor else states[1:]


def below(drafter: Any, states: Tensor, path: Tensor) -> tuple[Tensor, Tensor | None]:
    """DSpark's logits below a path, root first, [v], and the confidence in them, given the block's states [K, H]."""
    weights = {name: tensor.detach() for name, tensor in drafter.network.state_dict().items()}
    rank = weights["markov_head.markov_w1.weight"].shape[1]
    carried = states.new_zeros(rank)
    for level, token in enumerate(path):
        state, before = states[level], weights["markov_head.markov_w1.weight"][token]
        factors = before
        if drafter.layout.markov.kind == "gated":
            joint = torch.cat([state, before])
            gate = weights["markov_head.gate_proj.weight"] @ joint + weights["markov_head.gate_proj.bias"]
            factors = gate.sigmoid() * before
        if drafter.layout.markov.kind == "rnn":
            joint = torch.cat([carried, before, state])
            made = weights["markov_head.joint_proj.weight"] @ joint + weights["markov_head.joint_proj.bias"]
            gate, candidate, out = made[:rank].sigmoid(), made[rank : 2 * rank].tanh(), made[2 * rank :].tanh()
            carried, factors = gate * carried + (1 - gate) * candidate, out
    logits = drafter.target.head(state) + weights["markov_head.markov_w2.weight"] @ factors
    if "confidence_head.proj.weight" not in weights:
        return logits, None
    score = weights["confidence_head.proj.weight"][0] @ torch.cat([state, before])
    return logits, (score + weights["confidence_head.proj.bias"][0]).sigmoid()


def heads(part: dict[str, Tensor], which: str, row: Tensor, eps: float) -> Tensor:
    """The heads of a map of the attention, normed where that is done: [h, d]."""
    size = len(part["self_attn.q_norm.weight"])
    out = (part[f"self_attn.{which}_proj.weight"] @ row).view(-1, size)
    scale = part.get(f"self_attn.{which}_norm.weight")
    return out if scale is None else torch.stack([normed(head, scale, eps) for head in out])


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The root mean square norm."""
    return weight * x / (x.square().mean() + eps).sqrt()


def turned(heads: Tensor, place: int, theta: float) -> Tensor:
    """Heads [h, d] with the rotary embedding of a position."""
    size = heads.shape[-1]
    angles = place / theta ** (torch.arange(0, size, 2, dtype=heads.dtype) / size)
    a, b = heads.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
