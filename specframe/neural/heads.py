"""What heads share that read a part of the target's LM head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import NeuralTarget


@runtime_checkable
class DivisibleTarget(NeuralTarget, Protocol):
    """A neural target whose LM head can be read in part: the targets `hf` and `table`."""

    def head_for(self, tokens: slice | Tensor) -> Callable[[Tensor], Tensor]:
        """The LM head of these tokens alone, T of them: a function [..., D] -> [..., T], differentiable.

        Rows of a slice are shared with the target, those of int64 [T] are copied, once. Raises
        CompositionError for a head that has no rows.
        """
        ...


def divisible(target: NeuralTarget, head: str) -> DivisibleTarget:
    """The target itself, if its LM head can be read in part. Raises CompositionError in the head's name otherwise."""
    if not isinstance(target, DivisibleTarget):
        raise CompositionError(
            f"the head {head!r} reads a part of an LM head, and that of {type(target).__name__} cannot be divided; "
            "use the target hf, or the head full"
        )
    return target
