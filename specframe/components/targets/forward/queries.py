"""Queries of transformers' attention layers, shown by an attention function of ours in front of the model's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from torch import Tensor, nn

from specframe.neural.forward import Newest

PREFIX = "specframe_"
"""Beginning of the name of the function that stands before transformers' function of the rest of the name."""


def attention_of(layer: nn.Module) -> nn.Module | None:
    """The attention of a decoder layer, or None where it is not clear which module that is."""
    found = [child for child in layer.children() if hasattr(child, "layer_idx") and hasattr(child, "config")]
    return found[0] if len(found) == 1 else None


@contextmanager
def showing(
    attention: nn.Module | None, name: str, captured: dict[str, Tensor], lengths: Sequence[int] | None
) -> Iterator[None]:
    """Captures an attention layer's rotated, scaled queries [B, T, heads * size] under a name inside the with block.

    Of texts of these `lengths` they are those of the newest tokens. Nothing is captured of a layer that does not call
    transformers' attention functions.
    """
    if attention is None:
        yield
        return
    whole: Any = attention.config

    def show(queries: Tensor) -> None:
        states = queries.transpose(1, 2).flatten(2)
        if lengths is not None:
            newest = Newest(lengths, states.device)
            kept = newest.empty(states)
            newest.put(kept, states)
            states = kept
        captured[name] = states

    shown = copy(whole)
    shown._attn_implementation_internal = _registered(whole._attn_implementation)
    shown.show_queries = show
    attention.config = shown
    try:
        yield
    finally:
        attention.config = whole


def _registered(implementation: str) -> str:
    """The name of a function that shows the queries to the layer's config, and attends by this implementation."""
    from transformers import AttentionInterface  # a slow import: commands that load no model do without
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if (name := PREFIX + implementation) not in ALL_ATTENTION_FUNCTIONS:

        def attend(module: Any, query: Tensor, *others: Any, **options: Any) -> Any:
            scale = options.get("scaling")
            module.config.show_queries(query * (query.shape[-1] ** -0.5 if scale is None else scale))
            own: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
            return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, own)(module, query, *others, **options)

        AttentionInterface.register(name, attend)
    return name
