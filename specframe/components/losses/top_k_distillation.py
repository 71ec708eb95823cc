"""Distillation of the target's most probable tokens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.losses.scored import at, log_law, mean
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class TopKDistillation:
    """- sum of p log q over the target's `k` most probable tokens, at temperature 1 (Zhang et al. 2024, HASS).

    Both laws are over the whole vocabulary; p is not renormalised over the k. HASS adds it, with weight 1,
    to EAGLE's two losses: drafts come from the top of the law, so the top is worth the most.

    Args:
        k: how many tokens count; HASS uses 10. A smaller vocabulary counts whole.
    """

    def __init__(self, *, k: int = 10) -> None:
        if k < 1:
            raise InputError(f"top_k_distillation: k must be at least 1, not {k}")
        self.k = k

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        p = log_law(at(teacher.logits, student.position))  # [B, M, V]
        best, tokens = p.topk(min(self.k, p.shape[-1]))  # [B, M, k]
        return mean(-(best.exp() * log_law(student.logits).gather(-1, tokens)).sum(-1), student.mask)
