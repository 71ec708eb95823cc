"""What heads may do apart from making logits, and what heads share that read a part of the target's LM head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import Head, NeuralTarget
from specframe.kernel.types import Proposal
from specframe.neural.quantized.rounding import Quantization


@runtime_checkable
class DivisibleTarget(NeuralTarget, Protocol):
    """A neural target whose LM head can be read in part: the targets `hf` and `table`."""

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Callable[[Tensor], Tensor]:
        """The LM head of these tokens alone, T of them: a function [..., D] -> [..., T], differentiable.

        Rows of a slice are shared with the target, those of int64 [T] are copied, once; with `quantize` into blocks of
        4 or 8 bits. Raises CompositionError for a head that has no rows, or none that can be quantized.
        """
        ...


def divisible(target: NeuralTarget, head: str) -> DivisibleTarget:
    """The target itself, if its LM head can be read in part. Raises CompositionError in the head's name otherwise."""
    if isinstance(target, DivisibleTarget):
        return target
    raise CompositionError(
        f"the head {head!r} reads a part of an LM head, and that of {type(target).__name__} cannot be divided; "
        "use the target hf, or the head full"
    )


@runtime_checkable
class ConfidentHead(Head, Protocol):
    """A head that also predicts what becomes of the token drafted by its logits: the head `acceptance`."""

    def confidence(self, features: Tensor) -> Tensor:
        """The probability that this token is accepted, if all above it are: [..., D] -> [...]."""
        ...


def support_of(part: object) -> Tensor | None:
    """The tokens of the logits' columns of a head or drafter, int64 [v]; None: the whole vocabulary.

    A part that proposes from some of the tokens has these as `support`, from bind on; and a head the size of the whole
    vocabulary as `vocab`.
    """
    support: Tensor | None = getattr(part, "support", None)
    return support


def make_proposal(logits: Tensor, head: Head | None, features: Tensor) -> Proposal:
    """The proposal of these logits [B, F, K, v] of the head's support, with the confidence that it has in it, if any.

    `features` [B, F, K, D] are what the head made the logits of.
    """
    # A class is looked at once; an instance of a Protocol in every call, which takes longer than the head's product.
    confidence = head.confidence(features) if issubclass(type(head), ConfidentHead) else None  # type: ignore[union-attr]
    return Proposal(logits, confidence, support_of(head), getattr(head, "vocab", None))
