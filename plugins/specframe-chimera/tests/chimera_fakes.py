"""A tiny target, a drafter bound to it, and a session of the two."""

from __future__ import annotations

from specframe.components.targets.table import TableTarget
from specframe.testing import GivenSession, shake
from specframe_chimera.drafter import Chimera

VOCAB, SIZE = 11, 8


def target() -> TableTarget:
    """A neural target in float64 with an embedding, an LM head and a Llama's layer shape."""
    return TableTarget(vocab=VOCAB, hidden=SIZE, seed=5)


def bound(**options: object) -> Chimera:
    """A drafter with random weights large enough for every part to matter."""
    drafter = Chimera(**options)
    drafter.bind(target())
    shake(drafter.module)
    return drafter


def session(rows: int, seed: int = 0) -> GivenSession:
    """The texts of a batch, made up."""
    return GivenSession.random(rows, VOCAB, SIZE, seed=seed)
