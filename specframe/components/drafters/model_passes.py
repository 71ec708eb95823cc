"""Forward passes of a drafting model, whole or by consecutive parts of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specframe.components.targets.architectures import Masks, Windows
from specframe.components.targets.forward.layer_subset import LayerSubset
from specframe.components.targets.forward.native import KernelPasses
from specframe.components.targets.forward.native_decoder import Nodes
from specframe.components.targets.hf import HFTarget
from specframe.kernel.layers import LayerChoice
from specframe.native.decoder import Mask
from specframe.neural.cache import SlotCache, cache_name


@dataclass(frozen=True)
class ModelInputs:
    """Input of one forward pass, from the cache's row `row` on. The cache is aimed at `slots`."""

    tokens: Tensor  # [B, T] int64
    positions: Tensor  # [B, T] int64
    slots: Tensor  # [B, T] int64
    seen: Tensor | None  # [B, T, W] bool, the slots that each sees; None: causally, all from slot 0 on
    keep: int | Tensor  # nodes with logits: a number of the last, 0 for all, or indices [E]
    row: int = 0
    places: Tensor | None = None  # [B, W] int64, the positions of the slots; None: each slot's number


Found = tuple[Tensor, Tensor | None]
"""Logits [B, E, V], and the state [B, T, D] that the next part of the layers gets, None behind the last."""


class DraftingPasses(Protocol):
    """A drafting model's forward passes, by one or several parts of its layers."""

    parts: int
    """Number of parts."""
    limit: int | None
    """Number of positions up to which every layer sees everything; None: always."""

    def run(self, part: int, asked: ModelInputs, cache: SlotCache, entry: Tensor | None) -> Found:
        """Runs one part, whose first layer gets `entry` [B, T, D]; None: the tokens' embeddings."""
        ...


class TransformersDrafting:
    """transformers' own forward pass, over a cache that writes to given slots."""

    def __init__(self, reader: HFTarget, exits: Sequence[int] = ()) -> None:
        """Splits the model after these numbers of layers, ascending; the last part ends with the model."""
        self._reader = reader
        self._cache_name = cache_name(reader.model)
        self._choices = _choices(reader.config.num_hidden_layers, exits) if exits else []
        self._models = [LayerSubset(reader.model, chosen, headless=False) for chosen in self._choices]
        self.parts = max(1, len(self._models))
        self._windows = Windows.of(reader.model)
        self.limit = self._windows.limit

    def run(self, part: int, asked: ModelInputs, cache: SlotCache, entry: Tensor | None) -> Found:
        """Runs one part of the layers."""
        options: dict[str, Any] = {
            self._cache_name: cache,
            "position_ids": asked.positions,
            "attention_mask": self._masks(asked, cache.width),
            "use_cache": True,
            "logits_to_keep": asked.keep,
        }
        if not self._models:
            return self._reader.model(asked.tokens, **options).logits, None
        model, last = self._models[part], self._choices[part].kept[-1]
        with ExitStack() as stack:
            states = stack.enter_context(model.listening(frozenset({f"layer.{last}"})))
            if entry is not None:
                stack.enter_context(model.entering(entry))
            logits: Tensor = model.model(asked.tokens, **options).logits
        return logits, states[f"layer.{last}"] if part + 1 < self.parts else None

    def _masks(self, asked: ModelInputs, width: int) -> Masks:
        """The masks of a forward pass, or None where it is causal: transformers makes those, windows included."""
        if asked.seen is None:
            return None
        slots = torch.arange(width, device=asked.slots.device).expand(len(asked.seen), -1)
        places = slots if asked.places is None else asked.places
        return self._windows.masks(asked.seen, asked.positions, places, self._reader.dtype)


class KernelParts:
    """The forward pass of the compiled kernels: by all layers of a quantized model, or by some of them."""

    limit: int | None = None

    def __init__(self, passes: KernelPasses, layers: Sequence[int], count: int, exits: Sequence[int] = ()) -> None:
        """Selects these of the `count` layers of the native passes; an exit is a number of these."""
        self._passes = passes
        parts = _choices(len(layers), exits)
        self._choices = [_spread(chosen, layers, count) for chosen in parts]
        self.parts = len(parts)

    def run(self, part: int, asked: ModelInputs, cache: SlotCache, entry: Tensor | None) -> Found:
        """Runs one part of the layers."""
        seen = asked.seen
        if seen is None:
            seen = torch.arange(cache.width) <= asked.slots[:, :, None]
        chosen = self._choices[part]
        nodes = Nodes(asked.tokens, asked.positions, Mask(seen, asked.slots), asked.row)
        logits, states = self._passes.part(nodes, cache, chosen, entry, asked.keep)
        return logits, states[f"layer.{chosen.kept[-1]}"] if part + 1 < self.parts else None


def _choices(count: int, exits: Sequence[int]) -> list[LayerChoice]:
    """The layers of each part, of `count`."""
    ends = [*exits, count]
    spans = zip([0, *exits], ends, strict=True)
    runs = [tuple(start <= layer < end for layer in range(count)) for start, end in spans]
    return [LayerChoice(run, run) for run in runs]


def _spread(chosen: LayerChoice, layers: Sequence[int], count: int) -> LayerChoice:
    """A choice among these layers, as one among all."""
    kept = {layers[index] for index in chosen.kept}
    runs = tuple(layer in kept for layer in range(count))
    return LayerChoice(runs, runs)
