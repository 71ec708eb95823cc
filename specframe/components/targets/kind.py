"""The kind of model of a target: everything that determines masks, positions and arithmetic, except the weights."""

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
    """A target around a transformers model, as the self-test needs it."""

    weights: nn.Module
    parts: Anatomy
    computing: HookedForward
    quantization: Any
    """Quantization of its matrices; None: not quantized."""

    @property
    def model(self) -> nn.Module:
        """The transformers model."""

    @property
    def forward(self) -> Forward:
        """The target's forward pass."""

    @property
    def reach(self) -> tuple[int, str]:
        """Number of positions available to a row, and the reason for the limit."""

    def check(self) -> None:
        """Runs `find_fault`; raises CompositionError if it finds one."""


def fingerprint(target: TransformersTarget, edition: int) -> str:
    """Returns a name for a target's kind of model and the edition of the self-test."""
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
    """Returns a model's modules and weights by name, type and the attributes that determine their arithmetic."""
    modules = [(name, type_name(module), module.extra_repr()) for name, module in model.named_modules()]
    weights = [(name, type_name(weight), str(weight.dtype)) for name, weight in model.named_parameters()]
    return [*modules, *weights]


def type_name(value: object) -> str:
    """Returns the full name of a value's type."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
