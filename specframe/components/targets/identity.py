"""Identity of a target's model: its name, and a hash unchanged by rounding, native passes and copies."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specframe.neural.weights.locate import find_place
from specframe.neural.weights.origin import TargetIdentity
from specframe.recipes.zoo import ZOO

SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")


def identify(model: nn.Module, config: Any, name: str | None) -> TargetIdentity:
    """The identity of a model with this text config; `name` is the requested name, None for a model in memory."""
    given = name or getattr(model, "name_or_path", None) or f"a {config.model_type} model in memory"
    return TargetIdentity(_bare(str(given)), fingerprint(model, config))


@torch.no_grad()
def fingerprint(model: nn.Module, config: Any) -> str:
    """A hash of the model's shape and norms.

    Norms are small, differ after every training, and no quantization rounds them. They are taken in bfloat16: a copy in
    another dtype has the same.
    """
    digest = hashlib.sha256(repr([getattr(config, name, None) for name in SHAPE]).encode())
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() == 1:
            digest.update(weight.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def _bare(name: str) -> str:
    """The name in the zoo or on the Hub; for a folder or file its own name, without the path."""
    if name.startswith(ZOO) or not isinstance(find_place(name), Path):
        return name
    return Path(name).expanduser().resolve().name
