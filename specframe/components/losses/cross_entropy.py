"""Cross-entropy against the target's law."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.losses.scored import at, log_law, mean

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class CrossEntropy:
    """- sum over the vocabulary of p log q, at temperature 1 (EAGLE Section 4.2).

    Its gradient is that of KL(p || q); the value is larger by the entropy of p.
    """

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        p = log_law(at(teacher.logits, student.position)).exp()  # [B, M, V]
        return mean(-(p * log_law(student.logits)).sum(-1), student.mask)
