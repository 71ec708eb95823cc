"""Evaluation mode for one call, because trainers call `generate` in training mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from specframe import InputError

NOISE = ("drop", "jitter")
"""Parts of names of config values that make a forward pass random in training mode if they are above 0."""
RANDOM = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
"""Modules that behave differently in training mode; a dropout with `p` of 0 does not."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switches the model to evaluation mode; modules that were in training mode are switched back afterwards.

    Raises InputError if `generate` itself would sample from another distribution in training mode.
    """
    training = [module for module in model.modules() if module.training]
    if training and (names := sorted(_noise(model))):
        raise InputError(
            f"the model is in training mode, in which {names[0]} changes its distribution; call model.eval(), or set "
            "it to 0"
        )
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _noise(model: nn.Module) -> Iterator[str]:
    """Yields the names of modules and config values that change a forward pass in training mode."""
    config: Any = getattr(model, "config", None)
    yield from () if config is None else _above_zero(config.to_dict())
    for name, module in model.named_modules():
        if module.training and isinstance(module, RANDOM) and getattr(module, "p", 1.0):
            yield name


def _above_zero(config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _above_zero(value)
        elif any(part in str(name) for part in NOISE) and isinstance(value, int | float) and value > 0:
            yield name
