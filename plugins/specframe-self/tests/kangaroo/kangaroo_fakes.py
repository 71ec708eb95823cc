"""Drafters bound to tiny targets, every weight of them random."""

from __future__ import annotations

import torch

from specframe.components.targets.hf import HFTarget
from specframe.testing import shake, tiny_target
from specframe_self.kangaroo.drafter import Kangaroo

VOCAB, SIZE, LAYERS = 11, 8, 4


def target(kind: str = "llama", dtype: torch.dtype = torch.float64, layers: int = LAYERS) -> HFTarget:
    """A random target of `layers` layers."""
    return tiny_target(kind, vocab=VOCAB, size=SIZE, layers=layers, dtype=dtype)


def bound(model: HFTarget | None = None, exit: int = 2) -> Kangaroo:
    """A drafter of a random target, with a random adapter."""
    drafter = Kangaroo(exit=exit)
    drafter.bind(model or target())
    shake(drafter.module)
    return drafter
