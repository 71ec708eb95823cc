"""Inputs that a model makes for its own generation, such as the virtual tokens of prompt tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.errors import InputError

METHOD = "prepare_inputs_for_generation"
SPEED = frozenset({"use_cache", "logits_to_keep", "cache_position", "output_attentions", "output_hidden_states"})
"""Inputs that change no logits."""


def require_tokens_alone(model: Any, tokens: Tensor, inputs: Mapping[str, Any]) -> None:
    """Raises InputError for a model whose method `prepare_inputs_for_generation` was replaced to add to the tokens.

    peft replaces it for every adapter: an adapter of weights, such as LoRA, prepares what the model itself does, and
    prompt tuning, P-tuning and prefix tuning add inputs, which a loop that scores trees of tokens cannot give.
    tokens [B, T] are the prompts, `inputs` what `generate` hands on with them.
    """
    own = vars(model).get(METHOD)
    if own is None:
        return
    original = getattr(type(model), METHOD)
    given = {**inputs, "is_first_iteration": True}
    added = _differences(original(model, tokens, **given), own(tokens, **given))
    if added:
        raise InputError(
            f"this model makes inputs of its own for generation ({', '.join(added)}), as prompt tuning, P-tuning and "
            "prefix tuning do: a custom_generate of specframe gives it tokens alone, and would lose them"
        )


def _differences(plain: Mapping[str, Any], prepared: Mapping[str, Any]) -> list[str]:
    """The names of inputs that change a forward pass and are not those of the plain model."""
    names = sorted((plain.keys() | prepared.keys()) - SPEED)
    return [name for name in names if not _same(plain.get(name), prepared.get(name))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return one is other or (type(one) is type(other) and isinstance(one, str | int | float | bool) and one == other)
