"""P-EAGLE drafters bound to EAGLE-3's random target, and their forward restated number by number."""

from __future__ import annotations

from math import sqrt

import eagle3_texts as texts
import torch
from eagle3_reference import fuse, normed, turned
from torch import Tensor
from torch.nn.functional import silu

from specframe.components.heads import Trimmed
from specframe.testing import shake
from specframe_eagle.parallel.drafter import PEagle, PublishedParallel

VOCAB, LEVELS = texts.VOCAB, 3
NETWORKS: list[dict[str, object]] = [
    {},
    {"layers": 3, "own_embedding": True},
    {"layers": 2, "fc_norm": True, "layer": "qwen3", "mask_token": 4},
    {"norm_before_residual": True, "norm_before_fc": True, "own_head": False, "taps": [0, 5]},
]
"""The published kinds: of one layer and of several, of Llama and Qwen3, with and without matrices of their own."""


def bound(dtype: torch.dtype = torch.float64, keep: int | None = 6, levels: int = LEVELS, **options: object) -> PEagle:
    """A drafter with random weights, over the first `keep` tokens; None: over all."""
    drafter = PEagle(head=None if keep is None else Trimmed(keep=keep), levels=levels, **options)
    drafter.bind(texts.target(dtype))
    shake(drafter.module, seed=2)
    return drafter


@torch.no_grad()
def round_weights(drafter: PEagle) -> PEagle:
    """The drafter, its weights what bfloat16 can hold, as a stored drafter's are."""
    for weight in drafter.module.parameters():
        weight.copy_(weight.bfloat16())
    return drafter


@torch.no_grad()
def literal(drafter: PEagle, taps: Tensor, tokens: Tensor) -> Tensor:
    """The logits of all levels below the last of tokens [n], given the taps [n, A H] before each: [K, v]."""
    weights = dict(PublishedParallel(drafter.network, drafter.layout, drafter.target).state_dict())
    weights = {name: tensor.detach() for name, tensor in weights.items()}
    table = weights.get("embed_tokens.weight")
    if table is None:
        table = drafter.target.embed(torch.arange(VOCAB))
    masks = drafter.levels - 1
    read = torch.cat([taps, weights["mask_hidden"].view(1, -1).expand(masks, -1)])
    ids = torch.cat([tokens, torch.full((masks,), drafter.layout.mask)])
    states = torch.stack([fuse(drafter, weights, row) for row in read])
    x = torch.cat([table[ids].to(states.dtype), states], -1)
    for number in range(drafter.layout.shape.num_hidden_layers):
        prefix = f"layers.{number}."
        part = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        x = torch.stack([layer(drafter, part, x[: place + 1], first=number == 0) for place in range(len(x))])
    states = torch.stack([normed(drafter, row, weights["norm.weight"]) for row in x[-drafter.levels :]])
    head = weights.get("lm_head.weight")
    return drafter.logits(states) if head is None else states @ head.T


def layer(drafter: PEagle, part: dict[str, Tensor], x: Tensor, *, first: bool) -> Tensor:
    """The output of a decoder layer for the last of its inputs [n, ..]; the first one reads token and state apart."""
    shape = drafter.layout.shape
    if first:
        token, state = x.chunk(2, -1)
        inner = torch.stack([normed(drafter, row, part["hidden_norm.weight"]) for row in state])
        token = torch.stack([normed(drafter, row, part["input_layernorm.weight"]) for row in token])
        read, residual = torch.cat([token, inner], -1), (inner if drafter.switches.norm_before_residual else state)[-1]
    else:
        read, residual = torch.stack([normed(drafter, row, part["input_layernorm.weight"]) for row in x]), x[-1]

    def heads(row: Tensor, which: str) -> Tensor:
        out = (part[f"self_attn.{which}_proj.weight"] @ row).view(-1, shape.head_dim)
        scale = part.get(f"self_attn.{which}_norm.weight")
        return out if scale is None else torch.stack([normed(drafter, head, scale) for head in out])

    query = turned(heads(read[-1], "q"), len(x) - 1, drafter)
    keys = torch.stack([turned(heads(row, "k"), place, drafter) for place, row in enumerate(read)])  # [n, kv, d]
    values = torch.stack([heads(row, "v") for row in read])
    mixed = []
    for number, head in enumerate(query):
        group = number * keys.shape[1] // len(query)
        mixed.append((keys[:, group] @ head / sqrt(shape.head_dim)).softmax(0) @ values[:, group])
    y = residual + part["self_attn.o_proj.weight"] @ torch.cat(mixed)
    inner = normed(drafter, y, part["post_attention_layernorm.weight"])
    gate, up, down = (part[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return y + down @ (silu(gate @ inner) * (up @ inner))
