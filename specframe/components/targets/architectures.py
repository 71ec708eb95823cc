"""Requirements of the tree decoder on an architecture, and the reasons for refusing some."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection
from functools import cache
from itertools import chain
from typing import Any

from torch import nn

from specframe.components.targets.forward.masks import AttentionView
from specframe.kernel.errors import CompositionError, InputError

log = logging.getLogger(__name__)

ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Layer types whose state is a KV cache, from which single tokens can be dropped."""

SPARSE = frozenset(
    {"indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse"}
)
"""Layer types that keep an index or summaries of earlier tokens in addition to keys and values."""

RECURRENT = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "mamba2", "recurrent"})
"""Layer types with a recurrent state."""

STATELESS = frozenset({"attention", "mlp", "moe"})
"""Other known layer types, some of them without state."""

BOTH = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
"""Recurrent layer types that also have attention, with the type of attention."""

MASKED = frozenset({"sdpa", "eager"})
"""Attention implementations that take an arbitrary mask."""

STEADY = frozenset({"default", "linear", "yarn", "llama3", "proportional"})
"""Types of rotary embeddings that depend only on the position, not on the length of the text."""

ENDLESS = 1 << 20
"""The context of a model without a limit."""

LOADERS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING": "AutoModelForCausalLM",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING": "AutoModelForImageTextToText",
}
"""transformers' registries of text-generation models, without and with image inputs, and their loaders."""


def find_classes(config_class: Any) -> tuple[Any, Any] | None:
    """The text-generation model class of a config class, and transformers' class that loads it.

    None if there is neither a language model nor a vision-language model.
    """
    import transformers

    for name, loader in LOADERS.items():
        found = getattr(transformers, name).get(config_class, None)
        if found is not None:
            return found[0] if isinstance(found, tuple) else found, getattr(transformers, loader)
    return None


def text_config(config: Any) -> Any:
    """The config of a model's text decoder. Raises CompositionError if there are several."""
    try:
        return config.get_text_config()
    except ValueError as error:
        raise CompositionError(f"{config.model_type} has several text models, and a target is one") from error


def refusal(model_class: type[nn.Module], whole: Any) -> str | None:
    """Returns the reason why a model cannot be a target, or None, from its class and config without its weights."""
    config = text_config(whole)
    name = config.model_type
    takes = inspect.signature(model_class.forward).parameters
    if any(getattr(part, "is_encoder_decoder", False) for part in (whole, config)):
        return f"{whole.model_type} is an encoder-decoder model; targets are decoder-only language models"
    first = [*takes, "nothing"][1]  # after self
    if first in takes and takes[first].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return "the forward of its class hides what it reads (*args, **kwargs); give the model of transformers in it"
    if first != "input_ids":
        return f"{whole.model_type} reads {first} with every text, and a prompt here is text alone"
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
    if sparse := kinds & SPARSE:
        return (
            f"{name} has sparse attention ({', '.join(sorted(sparse))}), which picks keys by an index of its own; "
            "specframe keeps no such index for the nodes of a tree"
        )
    if unknown := kinds - ATTENTION - RECURRENT - STATELESS:
        return f"{name} has layers of a kind that specframe does not know{_listed(unknown)}"
    if _reads_both_ways(config):
        return f"{name} reads texts in both directions; its config must have is_decoder: true to write one"
    attentive = not kinds or kinds - RECURRENT | kinds & BOTH.keys()
    if not kinds and getattr(model_class, "_is_stateful", False):
        return f"{name} carries a recurrent state that it does not keep in a cache of transformers"
    if (attentive and "position_ids" not in takes) or getattr(config, "alibi", False):
        return f"{name} takes no position ids, so the nodes of a tree cannot be placed at their depth"
    return None


def _listed(kinds: set[str]) -> str:
    return f" ({', '.join(sorted(kinds))})" if kinds else ""


def _reads_both_ways(config: Any) -> bool:
    """Returns whether a config is an encoder's: of a masked-language-model family, with is_decoder false."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and getattr(config, "is_decoder", None) is False


def attention_refusal(config: Any) -> str | None:
    """Returns why a loaded model's attention cannot score trees, or None if it can."""
    chosen = getattr(config, "_attn_implementation", None) or "eager"
    if chosen in MASKED:
        return None
    return f'attention {chosen!r} takes no tree mask; load the model with attn_implementation="sdpa" (or "eager")'


def context(config: Any) -> int:
    """The largest number of positions per row by the config: with YaRN, the length it was extended to."""
    found = _written_context(config)
    stretched = [_stretched(part, found) for part in _ropes(config) if part.get("rope_type") == "yarn"]
    return max([found, *stretched])


def _written_context(config: Any) -> int:
    for name in ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return ENDLESS


def choose_context(config: Any, wanted: int | None) -> int:
    """The requested number of positions per row, or the config's.

    Logs a warning for more than the rotary embedding was trained for. Raises InputError for more than the position
    table has, or than the rotary embedding supports without changing the rotations of cached positions.
    """
    most = context(config)
    if wanted is None:
        return most
    if wanted < 1:
        raise InputError(f"a target's `context` is at least 1 position, not {wanted}")
    ropes = _ropes(config)
    if wanted > most and not ropes:
        raise InputError(f"{config.model_type} has a table of {most} positions, and no row can take {wanted}")
    if wanted > most and any(part.get("rope_type") in ("dynamic", "longrope") for part in ropes):
        raise InputError(
            f"beyond {most} positions the rotary embedding of {config.model_type} changes for all tokens with every "
            f"further one, which a tree cannot follow: its `context` cannot be {wanted}; yarn or linear scaling can"
        )
    known = max([most, *(_stretched(part, most) for part in ropes if part.get("rope_type") == "linear")])
    if wanted > known:
        log.warning("target: a context of %d positions, and its rotary embedding was made for %d", wanted, known)
    return wanted


def farthest(config: Any) -> int:
    """The largest number of positions that a model decodes correctly, possibly beyond `max_position_embeddings`.

    Unlimited if its rotary embedding rotates a position equally in texts of any length, as the unscaled, linear, YaRN
    and Llama 3 types do.
    """
    ropes = _ropes(config)
    steady = ropes and all(part.get("rope_type", "default") in STEADY for part in ropes)
    return ENDLESS if steady else context(config)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The parameters of a config's rotary embeddings, one per layer type; empty for other position encodings."""
    rope = getattr(config, "rope_parameters", None) or {}
    per_layer_type = rope and all(isinstance(part, dict) for part in rope.values())
    return list(rope.values()) if per_layer_type else [rope] if rope else []


def _stretched(rope: dict[str, Any], context: int) -> int:
    """Number of positions to which a scaled rotary embedding extends the context."""
    return int(rope.get("factor", 1.0) * (rope.get("original_max_position_embeddings") or context))


def views(config: Any) -> dict[str, AttentionView]:
    """Returns the attention views by layer type; empty if all layers attend to everything."""
    listed = set(getattr(config, "layer_types", None) or ())
    kinds = {BOTH.get(kind, kind) for kind in listed}
    if listed & BOTH.keys():
        kinds.add("linear_attention")  # a mask of its own, for what these layers have in addition to attention
    window = getattr(config, "sliding_window", None)
    if not kinds and isinstance(window, int) and getattr(config, "use_sliding_window", True):
        return {"sliding_attention": AttentionView(window=window)}
    near = {
        "sliding_attention": AttentionView(window=window),
        "chunked_attention": AttentionView(chunk=getattr(config, "attention_chunk_size", None)),
    }
    found = {kind: near.get(kind, AttentionView()) for kind in kinds}
    return found if any(view.limit is not None for view in found.values()) else {}


def takes_masks(decoder: nn.Module, kinds: Collection[str]) -> bool:
    """Returns whether layers of these types accept masks. A decoder with several types must accept a dictionary of
    masks; one with a single type must implement its window by a mask, which is then replaced."""
    words = "create_sliding_window_causal_mask" if len(kinds) == 1 else "attention_mask, dict)"
    kind: Any = type(decoder)
    return words in _source(kind)


@cache
def _source(kind: type) -> str:
    """Returns the source text of a class, which is parsed once."""
    return inspect.getsource(kind)


def reach(config: Any, masked: bool, context: int) -> tuple[int, str]:
    """Returns the number of positions up to which tree scoring equals sequential scoring, and what limits it.

    `context` is the largest number of positions per row. `masked`: every layer type gets its own mask; otherwise
    all positions must fit into the attention windows.
    """
    limits = [(context, "the model's context")]
    for view in views(config).values():
        if view.limit is not None and not masked:
            limits.append((view.limit, f"the {'chunk' if view.chunk else 'sliding window'} of its attention"))
    if "local" in (getattr(config, "attention_layers", None) or ()):
        limits.append((config.window_size, "the window of its local attention"))
    for part in _ropes(config):
        if part.get("rope_type") == "longrope":
            # Beyond it, every position's rotation changes, the cached ones' too.
            original = part.get("original_max_position_embeddings") or context
            changes = "where its rotary embedding changes over to long texts, whatever its `context`"
            limits.append((original, changes))
    return min(limits, key=lambda limit: limit[0])


def require_reach(needed: int, limit: int, reason: str) -> None:
    """Raises CompositionError for more positions than the limit, whose reason is given."""
    if needed > limit:
        raise CompositionError(
            f"prompt and output take up to {needed} positions, more than {limit}, "
            f"{reason}; use shorter prompts or a smaller max_new_tokens"
        )


def require_kv_selection(config: Any, budget: int, context: int, owner: str = "the target") -> None:
    """Raises CompositionError if drafts cannot attend to selected slots, or no row has as many as the budget."""
    if limits := [view.limit for view in views(config).values() if view.limit is not None and view.limit < context]:
        raise CompositionError(
            f"a KV selection chooses among all committed tokens, and attention of {config.model_type} sees the last "
            f"{min(limits)} alone; leave out `kv_selection`, or take a model without sliding windows"
        )
    if budget > context:
        raise CompositionError(f"a KV selection of {budget} tokens is longer than {owner}'s context of {context}")


def require_layers(model: Any) -> tuple[nn.Module, nn.ModuleList]:
    """The decoder and its layers of a loaded model. Raises CompositionError for one that cannot be a target."""
    config = text_config(model.config)
    reason = refusal(type(model), model.config) or attention_refusal(config)
    found = layers(model, config)
    if reason is None and found is None:
        reason = f"{model.config.model_type} does not keep its decoder layers in one list"
    if reason is None and model.get_output_embeddings() is None:
        reason = f"{model.config.model_type} does not give its LM head"
    if reason is not None or found is None:
        raise CompositionError(f"this model cannot be a target: {reason}")
    return found


def layers(model: nn.Module, config: Any) -> tuple[nn.Module, nn.ModuleList] | None:
    """The decoder and the list of its layers, or None if the model has another structure.

    Searches the module that the model returns as its decoder, so as not to find image or audio towers, which may be
    equally deep; a tower inside it is recognised by its config class. A model without towers, whose config is the
    text's, is searched as a whole if its decoder has no layers.
    """
    whole: Any = model
    places = [whole.get_decoder()] if hasattr(whole, "get_decoder") else []
    if getattr(whole, "config", config) is config:
        places.append(whole)
    for module in chain.from_iterable(place.modules() for place in places):
        if type(getattr(module, "config", config)) is not type(config):
            continue
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers:
                return module, child
    return None


def windows_of(model: nn.Module) -> dict[str, AttentionView]:
    """Returns the attention views of a model's layers by type; empty if all attend to everything or accept no masks."""
    config = text_config(model.config)
    found, ranges = layers(model, config), views(config)
    return ranges if found is not None and takes_masks(found[0], ranges) else {}
