"""A small random target with its drafters, and what it teaches."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from specframe.components.targets.hf import HFTarget
from specframe.plugin import Teacher
from specframe.testing import random_teacher, tiny_target
from specframe_coral.router import Router
from specframe_eagle.drafter import Eagle

VOCAB = 11


@lru_cache(maxsize=8)
def target(size: int = 8, vocab: int = VOCAB, dtype: torch.dtype = torch.float64) -> HFTarget:
    """A random Llama of one layer, far from uniform laws."""
    return tiny_target(vocab=vocab, size=size, layers=1, dtype=dtype)


def routed(
    drafter: Callable[..., Eagle] = Eagle, dtype: torch.dtype = torch.float64, **options: object
) -> tuple[Eagle, Router]:
    """A drafter with a router, untrained, and the router."""
    head = Router(**options)
    made = drafter(head=head)
    made.bind(target(dtype=dtype))
    return made, head


def teach(batch: int, length: int, dtype: torch.dtype = torch.float64) -> Teacher:
    """Its outputs for random texts."""
    return random_teacher(target(dtype=dtype), batch, length)
