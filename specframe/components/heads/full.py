"""The target's own LM head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.kernel.errors import CompositionError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.interfaces import NeuralTarget


class FullHead:
    """Logits over the whole vocabulary, by the target's own frozen LM head (EAGLE, Falcon Eq. 6)."""

    def __init__(self) -> None:
        self._target: NeuralTarget | None = None

    def bind(self, target: NeuralTarget) -> None:
        """Attaches to the target whose head is shared."""
        if not hasattr(target, "head"):
            raise CompositionError("the head 'full' needs a target with an LM head, such as the target 'hf'")
        self._target = target

    def __call__(self, features: Tensor) -> Tensor:
        """The target's logits for these features, [..., D] -> [..., V]; differentiable in the features."""
        if self._target is None:
            raise CompositionError("the head 'full' was called before bind(target)")
        return self._target.head(features)
