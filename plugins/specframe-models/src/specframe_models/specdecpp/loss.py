"""Loss of the head `acceptance`: predicted against actual acceptance of drafted tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import CompositionError, InputError
from specframe.plugin import Draw, scored

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Student, Teacher


class AcceptanceLoss:
    """Weighted binary cross-entropy between confidence and acceptance (Huang et al. 2024, SpecDec++).

    It is -(y log c + `rejection` (1 - y) log(1 - c)), where c is the confidence and y the probability that a token
    drafted by law q is accepted against the target's law p. With a `rejection` of 1 its minimum is c = y; otherwise it
    is y / (y + `rejection` (1 - y)), which is deliberately too low. The paper divides by a batch's weights, this loss
    by its number of predictions.

    The paper draws one token and uses its min(1, p / q); here y is the exact mean over tokens. The paper's mixing of
    tokens into drafted texts (0.15) is not needed either, because the laws at the text's positions are exact. Gradients
    reach only the confidence.

    Args:
        draw: the tree's draw. For `top`, y is p of q's most probable token, and at temperature 0 whether it is p's; for
            `iid` it is the sum of min(p, q), which the verifiers recursive and block accept.
        temperature: of the laws, which should be that of decoding.
        rejection: the weight of a rejection (the paper: 6).
    """

    def __init__(self, *, draw: Draw = Draw.TOP, temperature: float = 0.0, rejection: float = 6.0) -> None:
        if draw is Draw.WITHOUT_REPLACEMENT:
            raise InputError("acceptance: the head rates one token; draw must be top or iid")
        if temperature < 0:
            raise InputError(f"acceptance: temperature must not be negative, not {temperature}")
        if not rejection > 0:
            raise InputError(f"acceptance: rejection must be above 0, not {rejection}")
        self.draw = draw
        self.temperature = temperature
        self.rejection = rejection

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the mean over scored predictions, a scalar."""
        if student.confidence is None:
            raise CompositionError(
                "the loss 'acceptance' needs a confidence: use the rollout {use: acceptance, rollout: ...}"
            )
        tiny = torch.finfo(student.confidence.dtype).eps
        c = student.confidence.clamp(tiny, 1 - tiny)  # [B, M]
        y = self.accepted(student, teacher).detach()
        return scored.mean(-y * c.log() - self.rejection * (1 - y) * (1 - c).log(), student.mask)

    def accepted(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the probability that the token drafted by each prediction is accepted: [B, M]."""
        if self.temperature == 0:
            return (scored.gather_positions(teacher.argmax, student.position) == student.argmax).to(
                student.log_law.dtype
            )
        p = scored.gather_positions(scored.columns(self._law(teacher), student, teacher), student.position)  # [B, M, v]
        if self.draw is Draw.TOP:
            return p.gather(-1, student.logits.argmax(-1, keepdim=True)).squeeze(-1)
        q = (student.log_law / self.temperature).softmax(-1)
        return torch.minimum(p, q).sum(-1)

    def _law(self, teacher: Teacher) -> Tensor:
        """Returns the target's law at the temperature: [B, L, v]."""
        if self.temperature == 1:
            return teacher.log_law.exp()
        if teacher.support is not None:
            raise CompositionError(
                "acceptance: a cached teacher of a draft vocabulary has its distribution at temperature 1; "
                "use temperature 0 or 1, or leave out train.cache"
            )
        return (teacher.log_law / self.temperature).softmax(-1)
