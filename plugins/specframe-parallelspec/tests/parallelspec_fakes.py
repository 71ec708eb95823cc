"""A tiny target, a drafter bound to it, and a session of the two."""

from __future__ import annotations

from functools import lru_cache

import torch

from specframe.components.targets.hf import HFTarget
from specframe.testing import GivenSession, shake, tiny_target
from specframe_parallelspec.drafter import ParallelSpec

VOCAB, SIZE = 11, 8
SHAPES = [{"masks": 1}, {"masks": 3}, {"masks": 2, "features": False}]
"""Options that differ in what there is to compute."""


@lru_cache(maxsize=8)
def target(dtype: torch.dtype = torch.float64) -> HFTarget:
    """A random Llama."""
    return tiny_target(vocab=VOCAB, size=SIZE, dtype=dtype)


def bound(dtype: torch.dtype = torch.float64, **options: object) -> ParallelSpec:
    """A drafter with random weights large enough for every part to matter."""
    drafter = ParallelSpec(**options)
    drafter.bind(target(dtype))
    shake(drafter.module, by=1 / 2)
    return drafter


def session(rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> GivenSession:
    """The texts of a batch, made up."""
    return GivenSession.random(rows, VOCAB, SIZE, seed=seed, dtype=dtype)
