"""Distillation of the target's law."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.losses.scored import at, log_law, mean
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class Distillation:
    """alpha KL(p || q) + (1 - alpha) CE, the hard label being the target's argmax (Falcon Eq. 3 to 5).

    Both laws are at temperature 1.

    Args:
        alpha: the share of the soft part; Falcon uses 0.9.
    """

    def __init__(self, *, alpha: float = 0.9) -> None:
        if not 0 <= alpha <= 1:
            raise InputError(f"distillation: alpha must lie between 0 and 1, not {alpha}")
        self.alpha = alpha

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        p = log_law(at(teacher.logits, student.position))  # [B, M, V]
        q = log_law(student.logits)  # [B, M, V]
        soft = (p.exp() * (p - q)).sum(-1)  # [B, M]
        hard = -q.gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1)  # [B, M]
        return mean(self.alpha * soft + (1 - self.alpha) * hard, student.mask)
