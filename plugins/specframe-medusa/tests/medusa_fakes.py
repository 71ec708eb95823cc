"""A tiny target, a session of it, and weights as checkpoints hold them."""

from __future__ import annotations

import torch

from specframe import testing
from specframe.components.targets.table import TableTarget
from specframe.testing import GivenSession

VOCAB, SIZE = 11, 8


def target() -> TableTarget:
    """A neural target in float64 with an embedding, an LM head and a Llama's layer shape."""
    return TableTarget(vocab=VOCAB, hidden=SIZE, seed=5)


def session(rows: int, seed: int = 0) -> GivenSession:
    """The texts of a batch, made up."""
    return GivenSession.random(rows, VOCAB, SIZE, seed=seed)


def shake(module: torch.nn.Module) -> None:
    """Random weights large enough for every part to matter, all of them numbers of half precision."""
    testing.shake(module)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(weight.half())
