"""A model with some of its layers left out, which shares its weights with the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

from torch import nn

from specframe.components.targets import architectures
from specframe.kernel.errors import CompositionError


def thin(model: nn.Module, kept: Sequence[int]) -> nn.Module:
    """The model with the decoder layers `kept` alone, in this order; `model` stays as it is.

    Modules on the way to the layers are copied, their weights are not: nothing takes up memory twice. Raises
    CompositionError for a model whose layers are unknown, and for a layer that it does not have.
    """
    original: Any = model
    config = original.config.get_text_config()
    found = architectures.layers(model, config)
    if found is None:
        raise CompositionError(f"{config.model_type} does not keep its decoder layers in one list")
    decoder, layers = found
    if wrong := [index for index in kept if not 0 <= index < len(layers)]:
        raise CompositionError(f"the target has layers 0 .. {len(layers) - 1}, and no layer {wrong[0]}")
    fewer = deepcopy(original.config)
    text = fewer.get_text_config()
    text.num_hidden_layers = len(kept)
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[index] for index in kept]
    small = nn.ModuleList([_renumbered(layers[index], place) for place, index in enumerate(kept)])
    result: Any = _replaced(model, {id(layers): small, id(decoder): None})
    for module in (result, _at(result, model, decoder)):
        if hasattr(module, "config"):
            module.config = fewer if module is result else text
    return result


def _twin(module: nn.Module) -> nn.Module:
    """A module of the same weights and children, without the hooks."""
    twin = copy(module)
    for name, value in vars(module).items():
        if name == "_modules":
            setattr(twin, name, dict(value))
        elif "_hooks" in name and value is not None and not isinstance(value, bool):
            setattr(twin, name, type(value)())
    return twin


def _renumbered(layer: nn.Module, place: int) -> nn.Module:
    """The layer under another number, by which it finds its keys and values in a cache."""
    twin: Any = _twin(layer)
    if hasattr(twin, "layer_idx"):
        twin.layer_idx = place
    for name, child in layer.named_children():
        if hasattr(child, "layer_idx"):
            own: Any = _twin(child)
            own.layer_idx = place
            setattr(twin, name, own)
    return twin


def _replaced(module: nn.Module, parts: dict[int, nn.Module | None]) -> nn.Module:
    """The module with parts exchanged, found by identity; what contains none of them is shared."""
    if (part := parts.get(id(module))) is not None:
        return part
    if not any(id(inner) in parts for inner in module.modules()):
        return module
    twin = _twin(module)
    for name, child in module.named_children():
        setattr(twin, name, _replaced(child, parts))
    return twin


def _at(copied: nn.Module, original: nn.Module, part: nn.Module) -> nn.Module:
    """The copy's module in the place that `part` has in the original."""
    name = next(name for name, module in original.named_modules() if module is part)
    return copied.get_submodule(name)
