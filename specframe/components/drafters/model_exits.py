"""A language model read behind several of its layers, in training, some of which may be left out of some texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures
from specframe.components.targets.forward.layer_subset import HeadModel
from specframe.components.targets.forward.taps import make_hook
from specframe.kernel.errors import InputError


def checked_exits(exits: Sequence[int], layers: int) -> tuple[int, ...]:
    """The exits. Raises InputError for those that are not ascending numbers of 1 to so many layers."""
    if not exits or list(exits) != sorted(set(exits)) or exits[0] < 1 or exits[-1] > layers:
        raise InputError(f"exits are ascending numbers of layers from 1 to {layers}, not {list(exits)}")
    return tuple(exits)


def read_exits(
    model: Any, ending: HeadModel, tokens: Tensor, exits: Sequence[int], kept: Tensor | None = None
) -> list[Callable[[], Tensor]]:
    """For each exit, after so many layers, a function that makes its logits [B, L, V] of texts [B, L].

    They are what the model's `ending` makes of what the last of these layers gave, and gradients reach all of it.
    One forward pass serves all exits. Where `kept` [layers, B] is False, a layer passes a text's states on unchanged.
    """
    found = architectures.layers(model, model.config.get_text_config())
    assert found is not None, "a target's layers are in one list"
    states: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for layer, runs in zip(found[1], () if kept is None else kept, strict=kept is not None):
            stack.callback(layer.register_forward_hook(partial(_leave_out, runs), with_kwargs=True).remove)
        for count in exits:
            stack.callback(found[1][count - 1].register_forward_hook(make_hook(str(count), states)).remove)
        model(tokens, use_cache=False, logits_to_keep=1)
    return [partial(ending, tokens, states[str(count)]) for count in exits]


def _leave_out(runs: Tensor, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    """A layer's output where `runs` [B], its input elsewhere."""
    hidden = output if isinstance(output, Tensor) else output[0]
    mixed = torch.where(runs[:, None, None], hidden, given[0] if given else named["hidden_states"])
    return mixed if isinstance(output, Tensor) else (mixed, *output[1:])
