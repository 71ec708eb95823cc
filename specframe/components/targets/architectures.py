"""What the tree decoder needs of an architecture, and why it refuses some."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Layer types whose state is keys and values, which can be dropped token by token."""

MASKED = frozenset({"sdpa", "eager"})
"""Attention implementations that take an arbitrary mask."""


def refusal(model_class: type[nn.Module], config: Any) -> str | None:
    """Why a model cannot be a target, or None if it can. Reads the class and config, not the weights."""
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return f"{name} is an encoder-decoder model; targets are decoder-only language models"
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
    if getattr(model_class, "_is_stateful", False) or kinds - ATTENTION - {"attention"}:
        return (
            f"{name} carries recurrent state, which cannot be rewound to drop rejected tokens; "
            "take a model whose layers are all attention"
        )
    takes = inspect.signature(model_class.forward).parameters
    if "position_ids" not in takes or getattr(config, "alibi", False):
        return f"{name} takes no position ids, so the nodes of a tree cannot be placed at their depth"
    return None


def attention_refusal(config: Any) -> str | None:
    """Why a loaded model's attention cannot score trees, or None if it can."""
    chosen = getattr(config, "_attn_implementation", None) or "eager"
    if chosen in MASKED:
        return None
    return f'attention {chosen!r} takes no tree mask; load the model with attn_implementation="sdpa" (or "eager")'


def context(config: Any) -> int:
    """The most positions of one row, from the config."""
    for name in ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return 1 << 20


def reach(config: Any) -> tuple[int, str]:
    """Up to how many positions every query sees every earlier one unchanged, and what ends it.

    Short of this, windows never bite and tree scoring equals sequential scoring.
    """
    limits = [(context(config), "the model's context")]
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    if isinstance(window, int) and slides:
        limits.append((window, "the sliding window of its attention"))
    chunk = getattr(config, "attention_chunk_size", None)
    if isinstance(chunk, int) and "chunked_attention" in kinds:
        limits.append((chunk, "the chunk of its attention"))
    if "local" in (getattr(config, "attention_layers", None) or ()):
        limits.append((config.window_size, "the window of its local attention"))
    rope = getattr(config, "rope_parameters", None) or {}
    per_layer_type = all(isinstance(part, dict) for part in rope.values())
    for part in rope.values() if per_layer_type else [rope]:
        if part.get("rope_type") == "longrope":
            # Beyond it, every position's rotation changes, the cached ones' too.
            original = part.get("original_max_position_embeddings") or context(config)
            limits.append((original, "where its rotary embedding changes over to long texts"))
    return min(limits, key=lambda limit: limit[0])


def layers(model: nn.Module, config: Any) -> tuple[nn.Module, nn.ModuleList] | None:
    """The decoder and the list of its layers, or None where the model is built in another way."""
    for module in model.modules():
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers:
                return module, child
    return None
