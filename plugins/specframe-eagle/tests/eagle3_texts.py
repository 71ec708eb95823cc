"""A random target of eight layers, and EAGLE-3 drafters bound to it."""

from __future__ import annotations

from functools import lru_cache

import torch

from specframe.components.heads.trimmed import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.testing import shake, tiny_target
from specframe_eagle.eagle3 import Eagle3

VOCAB, LAYERS = 11, 8
NETWORKS = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_residual": True, "norm_before_fc": True, "layer": "qwen3"},
    {"own_head": False, "taps": [0, 5]},
]
"""EAGLE-3, EAGLE-3.1, all that only some engines serve, and one without an LM head."""


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
