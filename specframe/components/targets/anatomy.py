"""Parts of a loaded model that a target runs and reads: its decoder, layers, features and forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures
from specframe.components.targets.forward import recurrence
from specframe.components.targets.forward.state import State
from specframe.components.targets.forward.taps import Taps
from specframe.components.targets.forward.transformers import TransformersForward
from specframe.components.targets.forward.vision import Vision
from specframe.kernel.errors import CompositionError, InputError
from specframe.neural.cache import SlotCache
from specframe.neural.forward import Forward
from specframe.neural.recurrent import HybridCache


@dataclass(frozen=True)
class Anatomy:
    """A model taken apart. What runs is a copy of a model with recurrent layers, of the same weights."""

    config: Any
    """The config of its text decoder."""
    decoder: nn.Module
    layers: nn.ModuleList
    taps: Taps
    eager: TransformersForward
    """transformers' own forward pass."""
    memory: type[SlotCache]
    """The kind of memory that its layers need."""
    vision: Vision
    """Inputs that it reads with the tokens."""

    @classmethod
    def of(cls, model: Any) -> Anatomy:
        """Takes a model apart. Raises CompositionError for one that cannot be a target."""
        config = architectures.text_config(model.config)
        decoder, layers = architectures.require_layers(model)
        recurrent = bool(recurrence.mixers_of(decoder))
        runs, found = model, (decoder, layers)
        if recurrent:
            runs = recurrence.with_scans(model)
            found = architectures.require_layers(runs)
        vision = Vision.of(runs)
        taps = Taps(found[0], dict(enumerate(found[1])), vision.tokens)
        windows = architectures.takes_masks(decoder, views := architectures.views(config))
        eager = TransformersForward(runs, taps, views, windows)
        memory = HybridCache if recurrent else SlotCache
        return cls(config, decoder, layers, taps, eager, memory, vision)

    def begin(self, forward: Forward, slots: int, room: int, device: torch.device, before: State | None) -> State:
        """The state of a new session, in the storage of the one before where that will do."""
        shape = (slots, room, device, forward.widths)
        if before is not None and before.reopen(*shape):
            return before
        return State(self.memory, len(self.layers), *shape)

    def require_seeing(self, forward: Forward, inputs: Mapping[str, Tensor]) -> None:
        """Raises InputError for inputs that the model does not read, or not by this forward pass."""
        self.vision.require(inputs)
        if inputs and forward is not self.eager:
            raise InputError(
                "a target with `compile`, `kernels` or `quantize` reads texts alone: leave it out for images"
            )

    def require_rewindable(self, what: str) -> None:
        """Raises CompositionError where the layers' state cannot drop tokens, which `what` needs."""
        if not self.memory.rewindable:
            raise CompositionError(
                f"{self.config.model_type} cannot {what}: its recurrent layers keep one state for all committed "
                "tokens, and none can be dropped from it; take a drafter that reads tokens or features"
            )
