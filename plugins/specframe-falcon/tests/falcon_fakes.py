"""A tiny target, a drafter bound to it, and a session of the two."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from specframe.components.targets.hf import HFTarget
from specframe.testing import GivenSession, shake, tiny_target
from specframe_falcon.drafter import Falcon

VOCAB, SIZE = 11, 8


@lru_cache(maxsize=8)
def target(dtype: torch.dtype = torch.float64) -> HFTarget:
    """A random Llama, two query heads on one of keys."""
    return tiny_target(vocab=VOCAB, size=SIZE, dtype=dtype)


def bound(block: int, dtype: torch.dtype = torch.float64, layers: int = 1) -> Falcon:
    """A drafter with random weights large enough for every part to matter."""
    drafter = Falcon(block=block, layers=layers)
    drafter.bind(target(dtype))
    shake(drafter.module, seed=block)
    return drafter


def session(rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> GivenSession:
    """The texts of a batch, made up."""
    return GivenSession.random(rows, VOCAB, SIZE, seed=seed, dtype=dtype)


def pairs(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Features [n, D], and the token that follows each, [n]."""
    text = session(1, dtype=dtype)
    text.admit([count])
    return text.features[0], text.tokens[0]
