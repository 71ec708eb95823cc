"""What the head `acceptance` is trained on: whether drafted tokens are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe.components.losses.scored import at, log_law, mean
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import Draw

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class AcceptanceLoss:
    """Weighted binary cross-entropy between confidence and acceptance (Huang et al. 2024, SpecDec++).

    It is -(y log c + `rejection` (1 - y) log(1 - c)), where c is the confidence and y the probability that a token
    drafted by law q is accepted against the target's law p. Only with a `rejection` of 1 is its minimum c = y; else it
    is y / (y + `rejection` (1 - y)), which is too low on purpose. The paper divides by a batch's weights, this by its
    predictions.

    The paper draws one token and takes min(1, p / q) of it; y is the exact mean over tokens. Nor are
    tokens mixed into drafted texts (the paper's 0.15): the laws at the text's own positions are exact.
    Gradients reach the confidence alone.

    Args:
        draw: as the tree's. Of `top`, y is p of q's most probable token, at temperature 0 whether it is p's; of `iid`
            it is the sum of min(p, q), which the verifiers recursive and block accept.
        temperature: at which the laws are taken: that of decoding.
        rejection: how many times a rejection weighs (the paper: 6).
    """

    def __init__(self, *, draw: Draw = Draw.TOP, temperature: float = 0.0, rejection: float = 6.0) -> None:
        if draw is Draw.WITHOUT_REPLACEMENT:
            raise InputError("acceptance: the head speaks of one token; draw must be top or iid")
        if temperature < 0:
            raise InputError(f"acceptance: temperature must not be negative, not {temperature}")
        if not rejection > 0:
            raise InputError(f"acceptance: rejection must be above 0, not {rejection}")
        self.draw = draw
        self.temperature = temperature
        self.rejection = rejection

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        if student.confidence is None:
            raise CompositionError(
                "the loss 'acceptance' needs a confidence: use the rollout {use: acceptance, rollout: ...}"
            )
        tiny = torch.finfo(student.confidence.dtype).eps
        c = student.confidence.clamp(tiny, 1 - tiny)  # [B, M]
        y = self.accepted(at(teacher.logits, student.position), student.logits.detach())
        return mean(-y * c.log() - self.rejection * (1 - y) * (1 - c).log(), student.mask)

    def accepted(self, target: Tensor, drafter: Tensor) -> Tensor:
        """How likely a drafted token is accepted, by the logits of target and drafter: [.., V], [.., V] -> [..]."""
        if self.temperature == 0:
            return (target.argmax(-1) == drafter.argmax(-1)).to(torch.promote_types(target.dtype, torch.float32))
        p = log_law(target / self.temperature).exp()
        if self.draw is Draw.TOP:
            return p.gather(-1, drafter.argmax(-1, keepdim=True)).squeeze(-1)
        return torch.minimum(p, log_law(drafter / self.temperature).exp()).sum(-1)
