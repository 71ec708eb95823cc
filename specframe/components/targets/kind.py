"""The kind of model that a target is: all that decides on masks, positions and arithmetic, without the weights."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import torch
import transformers
from torch import nn

from specframe.components.targets.anatomy import Anatomy
from specframe.kernel.layers import LayeredTarget
from specframe.neural.forward import Forward, HookedForward


class TransformersTarget(LayeredTarget, Protocol):
    """A target around a model of transformers, as the self-test reads it."""

    weights: nn.Module
    parts: Anatomy
    computing: HookedForward
    quantization: Any
    """Rounding of its matrices; None: not rounded."""

    @property
    def model(self) -> nn.Module:
        """The model of transformers."""

    @property
    def forward(self) -> Forward:
        """The target's forward pass."""

    @property
    def reach(self) -> tuple[int, str]:
        """Number of positions that a row may take, and what ends it."""

    def check(self) -> None:
        """Runs `find_fault`; raises CompositionError where there is one."""


def fingerprint(target: TransformersTarget, edition: int) -> str:
    """A name for the kind of model that a target is, and the edition of what is known of it."""
    config: Any = target.weights.config
    described = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    model = type(target.weights)
    kind = (
        edition,
        f"{model.__module__}.{model.__qualname__}",
        sorted(described.items()),
        getattr(config, "_attn_implementation", None),
        str(target.dtype),
        target.device.type,
        target.quantization,
        type(target.forward).__name__,
        target.forward.cache,
        _modules(target.weights),
        torch.__version__,
        transformers.__version__,
    )
    return hashlib.sha256(repr(kind).encode()).hexdigest()[:32]


def _modules(model: nn.Module) -> list[tuple[str, ...]]:
    """The modules and weights of a model, by name, type and what decides on their arithmetic."""
    modules = [(name, type_name(module), module.extra_repr()) for name, module in model.named_modules()]
    weights = [(name, type_name(weight), str(weight.dtype)) for name, weight in model.named_parameters()]
    return [*modules, *weights]


def type_name(value: object) -> str:
    """The full name of the type of a value."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
