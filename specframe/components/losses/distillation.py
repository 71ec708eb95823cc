"""Distillation of the target's distribution, over all or its most probable tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe.components.losses.scored import columns, gather_positions, log_target, mean, place
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class Distillation:
    """alpha KL(p || q) + (1 - alpha) CE, the hard label being the target's argmax (Falcon Eq. 3 to 5).

    Both laws are at temperature 1. For a drafter with a support the sum is over its tokens: m KL(p given the
    support || q), where m is the support's share of p; an argmax outside the support adds no hard term.

    Args:
        alpha: the share of the soft part; Falcon uses 0.9.
    """

    def __init__(self, *, alpha: float = 0.9) -> None:
        if not 0 <= alpha <= 1:
            raise InputError(f"distillation: alpha must lie between 0 and 1, not {alpha}")
        self.alpha = alpha

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        p = log_target(student, teacher)  # [B, M, v]
        q = student.log_law  # [B, M, v]
        soft = (p.exp() * (p - q)).sum(-1)  # [B, M]
        best, inside = place(gather_positions(teacher.argmax, student.position), student.support)
        hard = -q.gather(-1, best[..., None]).squeeze(-1)  # [B, M]
        if inside is not None:
            mass = p.exp().sum(-1)
            soft = soft - torch.xlogy(mass, mass)
            hard = torch.where(inside, hard, 0)
        return mean(self.alpha * soft + (1 - self.alpha) * hard, student.mask)


class TopKDistillation:
    """- sum of p log q over the target's `k` most probable tokens, at temperature 1 (Zhang et al. 2024, HASS).

    Both laws are over the whole vocabulary, or the drafter's support; p is not renormalised over the k. HASS adds
    this loss, with weight 1, to EAGLE's two losses, because drafts come from the most probable tokens.

    Args:
        k: number of tokens; HASS uses 10. All tokens of a smaller vocabulary.
    """

    def __init__(self, *, k: int = 10) -> None:
        if k < 1:
            raise InputError(f"top-k-distillation: k must be at least 1, not {k}")
        self.k = k

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        p = columns(teacher.log_law, student, teacher)  # [B, L, v]
        values, indices = p.topk(min(self.k, p.shape[-1]))  # [B, L, k], once for all predictions of a position
        best, tokens = (
            gather_positions(values.exp(), student.position),
            gather_positions(indices, student.position),
        )  # [B, M, k]
        return mean(-(best * student.log_law.gather(-1, tokens)).sum(-1), student.mask)
