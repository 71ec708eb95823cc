"""Replacement of the attention function in transformers' attention layers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from torch import Tensor, nn

from specframe.neural.forward import Newest

PREFIX = "specframe_"
"""Prefix of the name of a function that wraps transformers' function with the rest of the name."""


def attention_of(layer: nn.Module) -> nn.Module | None:
    """The attention module of a decoder layer, or None if it cannot be identified."""
    found = [child for child in layer.children() if hasattr(child, "layer_idx") and hasattr(child, "config")]
    return found[0] if len(found) == 1 else None


@contextmanager
def attending_by(attentions: Sequence[nn.Module], attend: Callable[..., Any]) -> Iterator[None]:
    """Lets attention layers call `attend(own, module, query, key, value, mask, ...)` inside the with block.

    `own` is the original function. Layers that do not call transformers' attention functions are unaffected.
    """
    before: list[Any] = [layer.config for layer in attentions]
    try:
        for layer, whole in zip(attentions, before, strict=True):
            name = _registered(whole._attn_implementation)
            config: Any = copy(whole)
            config._attn_implementation_internal = name
            setattr(config, name, attend)  # by its name, for a with block inside another
            layer.config = config
        yield
    finally:
        for layer, whole in zip(attentions, before, strict=True):
            layer.config = whole


@contextmanager
def showing(
    attention: nn.Module | None, name: str, captured: dict[str, Tensor], lengths: Sequence[int] | None
) -> Iterator[None]:
    """Captures an attention layer's rotated, scaled queries [B, T, heads * size] under a name inside the with block.

    For texts of these `lengths`, captures only the newest tokens. Captures nothing for layers that do not call
    transformers' attention functions.
    """

    def show(own: Callable[..., Any], module: nn.Module, query: Tensor, *inputs: Any, **options: Any) -> Any:
        scale = options.get("scaling")
        scaled = query * (query.shape[-1] ** -0.5 if scale is None else scale)
        states = scaled.transpose(1, 2).flatten(2)
        if lengths is not None:
            newest = Newest(lengths, states.device)
            newest_states = newest.empty(states)
            newest.put(newest_states, states)
            states = newest_states
        captured[name] = states
        return own(module, query, *inputs, **options)

    with attending_by([] if attention is None else [attention], show):
        yield


def _registered(implementation: str) -> str:
    """The name of a function that attends as the layer's config names, with this implementation as the layer's own."""
    from transformers import AttentionInterface  # a slow import: commands that load no model do without
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if (name := PREFIX + implementation) not in ALL_ATTENTION_FUNCTIONS:

        def attend(module: Any, *inputs: Any, **options: Any) -> Any:
            eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
            own = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
            return getattr(module.config, name)(own, module, *inputs, **options)

        AttentionInterface.register(name, attend)
    return name
