"""Drafters bound to tiny targets, every weight of them random."""

from __future__ import annotations

from functools import lru_cache

import torch

from specframe.components.targets.hf import HFTarget
from specframe.testing import shake, tiny_target
from specframe_self.longspec.drafter import LongSpec

VOCAB, SIZE, LAYERS = 11, 8, 3


@lru_cache(maxsize=8)
def target(kind: str = "llama", dtype: torch.dtype = torch.float64) -> HFTarget:
    """A random target."""
    return tiny_target(kind, vocab=VOCAB, size=SIZE, layers=LAYERS, dtype=dtype)


def bound(kind: str = "llama", dtype: torch.dtype = torch.float64, window: int = 512) -> LongSpec:
    """A drafter of a random target, its weights random, too."""
    drafter = LongSpec(window=window)
    drafter.bind(target(kind, dtype))
    shake(drafter.module)
    drafter.module.eval()
    return drafter


def literal(drafter: LongSpec, tokens: list[int], verified: int, window: int) -> torch.Tensor:
    """The block's output at a text's last token, by loops: its cross-attention sees the first `verified` tokens."""
    network, model = drafter.network, drafter.target
    text = torch.tensor([tokens])
    features = model.teach(text, torch.ones_like(text).bool()).features[network.source.tap]
    place = torch.arange(len(tokens))[None]
    keys, values = network.source(features, place)
    x = model.embed(text)
    own, crossed = network.self_attn, network.cross_attn

    def rotated(states: torch.Tensor, position: int) -> torch.Tensor:
        cos, sin = (part[0, 0] for part in network.turn(x, torch.tensor([[position]])))
        half = states.shape[-1] // 2
        other = torch.cat([-states[..., half:], states[..., :half]], -1)
        return states * cos + other * sin

    def attended(attention: torch.nn.Module, read: torch.Tensor, position: int, pairs: list) -> torch.Tensor:
        queries = rotated(attention.q_proj(read).view(-1, attention.size), position)
        groups = pairs[0][0].shape[0]
        mixed = []
        for number, query in enumerate(queries):
            group = number * groups // len(queries)
            scores = torch.stack([query @ key[group] for key, _ in pairs]) / attention.size**0.5
            mixed.append(sum(share * value[group] for share, (_, value) in zip(scores.softmax(0), pairs, strict=True)))
        return attention.o_proj(torch.cat(mixed))

    last = len(tokens) - 1
    near = []
    for i in range(max(1, last - window + 1), len(tokens)):  # a session is given no entry of the first token
        normed = network.input_layernorm(x[0, i])
        near.append((rotated(own.k_proj(normed).view(-1, own.size), i), own.v_proj(normed).view(-1, own.size)))
    y = x[0, last]
    y = y + attended(own, network.input_layernorm(y), last, near)
    far = [(keys[0, :, i], values[0, :, i]) for i in range(verified)]
    y = y + attended(crossed, network.post_self_attention_layernorm(y), last, far)
    return y + network.mlp(network.post_cross_attention_layernorm(y))
