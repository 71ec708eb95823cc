"""Distillation of the target's most probable tokens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.losses.scored import at, columns, mean
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class TopKDistillation:
    """- sum of p log q over the target's `k` most probable tokens, at temperature 1 (Zhang et al. 2024, HASS).

    Both laws are over the whole vocabulary, or the drafter's support; p is not renormalised over the k. HASS adds
    it, with weight 1, to EAGLE's two losses: drafts come from the top of the law, so the top is worth the most.

    Args:
        k: how many tokens count; HASS uses 10. A smaller vocabulary counts whole.
    """

    def __init__(self, *, k: int = 10) -> None:
        if k < 1:
            raise InputError(f"top_k_distillation: k must be at least 1, not {k}")
        self.k = k

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        p = columns(teacher.log_law, student, teacher)  # [B, L, v]
        values, indices = p.topk(min(self.k, p.shape[-1]))  # [B, L, k], once for all predictions of a position
        best, tokens = at(values.exp(), student.position), at(indices, student.position)  # [B, M, k]
        return mean(-(best * student.log_law.gather(-1, tokens)).sum(-1), student.mask)
