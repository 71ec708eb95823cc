"""A subset of a model's layers, as a model that shares its weights and KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures
from specframe.components.targets.forward.taps import Taps
from specframe.kernel.errors import CompositionError
from specframe.kernel.layers import LayerChoice

MLPS = ("mlp", "feed_forward", "ffn", "block_sparse_moe")
"""The names that transformers gives to a layer's MLP."""


def embedding_and_head(model: Any) -> tuple[Any, Any]:
    """The current input embedding and LM head of a model."""
    return model.get_input_embeddings(), model.get_output_embeddings()


def device_of(module: Any) -> torch.device:
    """The device that a module computes on: its weights' device, or with Accelerate's offloading the hook's."""
    found: torch.device = module.weight.device
    hook = getattr(module, "_hf_hook", None)
    for each in getattr(hook, "hooks", None) or [hook]:
        if found.type == "meta" and (place := getattr(each, "execution_device", None)) is not None:
            found = torch.device(place)
    return found


class LayerSubset:
    """A model with only the chosen layers; the original model is not modified.

    Modules that contain the layers are copied without their weights, so no memory is duplicated. Layers keep their
    indices, and with them their keys and values in a cache. `headless`: returns the LM head's input as logits.

    Raises CompositionError for a model with unknown layers or sublayers.
    """

    def __init__(self, model: nn.Module, chosen: LayerChoice, headless: bool) -> None:
        original: Any = model
        found = architectures.layers(model, original.config.get_text_config())
        if found is None:
            raise CompositionError(f"{original.config.model_type} does not keep its decoder layers in one list")
        decoder, layers = found
        self._layers: dict[int, nn.Module] = {
            index: _with(layers[index], chosen.attention[index], chosen.mlp[index]) for index in chosen.active_layers
        }
        parts: dict[int, nn.Module | None] = {id(layers): nn.ModuleList(self._layers.values()), id(decoder): None}
        if headless:
            parts[id(original.get_output_embeddings())] = nn.Identity()
        self.model: Any = replaced(model, parts)
        self._decoder: Any = self.model.get_submodule(_name(model, decoder))
        fewer = deepcopy(original.config)
        text = fewer.get_text_config()
        text.num_hidden_layers = len(self._layers)
        if getattr(text, "layer_types", None):
            text.layer_types = [text.layer_types[index] for index in self._layers]
        for module in (self.model, self._decoder):
            if hasattr(module, "config"):
                module.config = fewer if module is self.model else text

    def listening(
        self, taps: frozenset[str], lengths: Sequence[int] | None = None
    ) -> AbstractContextManager[Mapping[str, Tensor]]:
        """A mapping tap -> [B, T, D] that fills while the model runs inside the with block: see `Taps.listening`."""
        return Taps(self._decoder, self._layers).listening(taps, lengths)

    @contextmanager
    def entering(self, states: Tensor | None) -> Iterator[None]:
        """Feeds these states [B, T, D] to the first layer inside the with block; None: the embeddings, as usual."""
        if states is None:
            yield
            return

        def enter(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if inputs:
                return (states, *inputs[1:]), named
            return inputs, {**named, "hidden_states": states}

        first = next(iter(self._layers.values()))
        handle = first.register_forward_pre_hook(enter, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


class HeadModel:
    """A model without its layers: the final norm and LM head."""

    def __init__(self, model: nn.Module) -> None:
        """Wraps a model, whose weights are shared. Raises CompositionError if its layers are unknown."""
        last = _depth(model) - 1
        others = range(last)
        self._part = LayerSubset(model, LayerChoice.without(last + 1, others, others), headless=False)
        found = architectures.layers(self._part.model, self._part.model.config.get_text_config())
        assert found is not None, "a part keeps its layers as the model does"
        self._layer = twin_of(found[1][0])
        found[1][0] = self._layer

    def __call__(self, tokens: Tensor, states: Tensor) -> Tensor:
        """The logits [B, L, V] for a layer's outputs [B, L, D] on texts [B, L]; differentiable."""
        self._layer.forward = lambda *given, **named: states
        logits: Tensor = self._part.model(tokens, use_cache=False).logits
        return logits


def take_layers(model: nn.Module, layers: Sequence[int]) -> nn.Module:
    """A model of only these layers, in ascending order and renumbered, which shares the weights of the given one.

    Its config has the new number of layers, so it can be saved like any model. Raises CompositionError for layers that
    do not exist or are not ascending, and for a model whose layers are unknown.
    """
    count = _depth(model)
    if list(layers) != sorted(set(layers)) or not layers or layers[0] < 0 or layers[-1] >= count:
        raise CompositionError(
            f"the model has layers 0 .. {count - 1}: `layers` lists some of them, ascending, not {list(layers)}"
        )
    others = [layer for layer in range(count) if layer not in layers]
    fewer: Any = LayerSubset(model, LayerChoice.without(count, others, others), headless=False).model
    found = architectures.layers(fewer, fewer.config.get_text_config())
    assert found is not None, "a part keeps its layers as the model does"
    for number, layer in enumerate(found[1]):
        found[1][number] = _renumbered(layer, number)
    thinned: nn.Module = fewer
    return thinned


def _depth(model: Any) -> int:
    """Returns the number of decoder layers of a model."""
    count: int = model.config.get_text_config().num_hidden_layers
    return count


def _renumbered(module: nn.Module, number: int) -> nn.Module:
    """A copy of the module with another layer index, which addresses its keys and values."""
    twin = twin_of(module)
    if hasattr(twin, "layer_idx"):
        twin.layer_idx = number  # type: ignore[assignment]
    for name, child in module.named_children():
        if any(hasattr(inner, "layer_idx") for inner in child.modules()):
            setattr(twin, name, _renumbered(child, number))
    return twin


def double(model: nn.Module, inner: Sequence[nn.Module]) -> tuple[Any, list[nn.Module]]:
    """A model with the same weights and copies of these modules, for separate hooks; and the copies."""
    twin = replaced(model, {id(module): None for module in inner})
    return twin, [twin.get_submodule(_name(model, module)) for module in inner]


class _Nothing(nn.Module):
    """Replacement of a skipped sublayer: it adds nothing to the residual stream."""

    def __init__(self, pair: bool) -> None:
        super().__init__()
        self._pair = pair

    def forward(self, hidden_states: Tensor, *others: Any, **options: Any) -> Any:
        """Zeros; as a pair with None for the attention weights if a pair is expected."""
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self._pair else nothing


def _with(layer: nn.Module, attention: bool, mlp: bool) -> nn.Module:
    """The layer with one or both of its sublayers. Raises CompositionError if they cannot be identified."""
    if attention and mlp:
        return layer
    if attention:
        left_out = [name for name, _ in layer.named_children() if name in MLPS]
    else:
        left_out = [name for name, child in layer.named_children() if hasattr(child, "layer_idx")]
    if len(left_out) != 1:
        kind = "mlp" if attention else "attention"
        raise CompositionError(
            f"it is unclear which module of a {type(layer).__name__} is its {kind}, which is to be left out; leave out "
            "whole layers, as the drafter self can"
        )
    twin = twin_of(layer)
    setattr(twin, left_out[0], _Nothing(pair=not attention))
    return twin


def twin_of(module: nn.Module) -> nn.Module:
    """A copy of a module with the same weights and children, without the hooks."""
    twin = copy(module)
    for name, value in vars(module).items():
        if name == "_modules":
            setattr(twin, name, dict(value))
        elif "_hooks" in name and value is not None and not isinstance(value, bool):
            setattr(twin, name, type(value)())
    return twin


def replaced(module: nn.Module, parts: dict[int, nn.Module | None]) -> nn.Module:
    """A copy of the module with parts, found by identity, replaced; submodules without them are shared."""
    if (part := parts.get(id(module))) is not None:
        return part
    if not any(id(inner) in parts for inner in module.modules()):
        return module
    twin = twin_of(module)
    for name, child in module.named_children():
        setattr(twin, name, replaced(child, parts))
    return twin


def _name(model: nn.Module, part: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is part)
