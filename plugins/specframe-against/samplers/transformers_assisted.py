"""transformers' assisted generation: `specframe certify --against transformers_assisted.py:accept`."""

from __future__ import annotations

from torch import Tensor
from transformers.generation.utils import _speculative_sampling


def accept(candidates: Tensor, p: Tensor, q: Tensor) -> tuple[int, int]:
    """The acceptance of a chain of two, which is drafted by default."""
    valid, matches = _speculative_sampling(candidates, q.log(), candidates.shape[1], p.log())
    return int(matches), int(valid[0, -1])
