"""A random target of eight layers, and EAGLE-3 drafters bound to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.testing import shake, tiny_target
from specframe_eagle.eagle3 import Eagle3

VOCAB, LAYERS = 11, 8
NETWORKS = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_residual": True, "norm_before_fc": True, "layer": "qwen3"},
    {"own_head": False, "taps": [0, 5]},
    {"layers": 2},
]
"""EAGLE-3, EAGLE-3.1, all that only some engines serve, one without an LM head, and one of two layers."""


@lru_cache(maxsize=8)
def target(dtype: torch.dtype = torch.float64, *, layers: int = LAYERS, vocab: int = VOCAB) -> HFTarget:
    """A random Llama, two query heads on one of keys."""
    return tiny_target("llama", layers=layers, vocab=vocab, dtype=dtype)


def bound(dtype: torch.dtype = torch.float64, keep: int | None = 6, **options: object) -> Eagle3:
    """A drafter with random weights, over the first `keep` tokens; None: over all."""
    head = None if keep is None else Trimmed(keep=keep)
    drafter = Eagle3(head=head, **options)
    drafter.bind(target(dtype))
    shake(drafter.module, seed=2)
    return drafter


def without(name: str) -> Callable[[dict[str, Any]], object]:
    """A change of a checkpoint: a tensor is missing."""
    return lambda tensors: tensors.pop(name)


def put(name: str, value: torch.Tensor) -> Callable[[dict[str, Any]], object]:
    """A change of a checkpoint: a tensor has another value."""
    return lambda tensors: tensors.update({name: value})


def load_theirs(kind: Any, folder: Path) -> Any:
    """A model of speculators from a folder, made once more with plain attention: their default needs a GPU."""
    read = kind.from_pretrained(folder).float()
    config = read.config
    config.transformer_layer_config._attn_implementation = "eager"
    model = kind(config).double().eval()
    model.load_state_dict(read.state_dict())
    return model
