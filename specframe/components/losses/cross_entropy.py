"""Cross-entropy against the target's law, or against the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from specframe.components.losses.scored import both, gather_positions, log_target, mean, place, require_texts
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class CrossEntropy:
    """Cross-entropy of the drafter's law q against the target's law or the text, at temperature 1.

    Against the law: - sum over the vocabulary of p log q (EAGLE Section 4.2), which has the gradient of KL(p || q)
    and exceeds it by the entropy of p. Against the text: - log q of the next token (Medusa-1, Section 2.2.1). On
    texts written by the target both agree in expectation.

    For a drafter with a support the sum is over its tokens, and tokens of the text outside it are not scored.

    Args:
        labels: what to predict: the target's law, or the next token of the text.
        decay: the weight of a level relative to the level above it: level n has weight decay^(n - 1) (Medusa: 0.8).
    """

    def __init__(self, *, labels: Literal["law", "text"] = "law", decay: float = 1.0) -> None:
        if not 0 < decay <= 1:
            raise InputError(f"cross-entropy: decay must be above 0 and at most 1, not {decay}")
        self.labels = labels
        self.decay = decay

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        return mean(*self.values(student, teacher))

    def values(self, student: Student, teacher: Teacher) -> tuple[Tensor, Tensor]:
        """The value of each prediction, [B, M], and the mask of predictions to average, [B, M] bool."""
        mask = student.mask
        q = student.log_law  # [B, M, v]
        if self.labels == "text":
            require_texts(teacher, "cross-entropy with labels: text")
            following = gather_positions(teacher.following, student.position)  # [B, M]
            mask = mask & (following >= 0)
            following, inside = place(following.clamp(min=0), student.support)
            mask = both(mask, inside)
            surprise = -q.gather(-1, following[..., None]).squeeze(-1)
        else:
            p = log_target(student, teacher).exp()  # [B, M, v]
            surprise = -(p * q).sum(-1)
        if self.decay < 1:
            surprise = surprise * self.decay ** (student.level - 1).to(surprise.dtype)
        return surprise, mask
