"""D-PACE's weights: a level of a draft counts in proportion to its effect on the accepted length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import CompositionError, InputError
from specframe.plugin import scored

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Loss, Student, Teacher


class DPace:
    """Weights another loss's predictions by the number of accepted tokens that depend on them (D-PACE).

    Let s be a level's smoothed probability, `alpha` + (1 - `alpha`) q, of drafting the target's token. A level's weight
    is the sum, over itself and the levels below it, of the products of s down to each. Levels that a draft seldom
    reaches count less, as do the last ones. No gradient flows through the weights. The levels of a draft are the
    predictions made from one position, with any rollout.

    Args:
        loss: the weighted loss: `cross-entropy`, or another with a value for each prediction.
        alpha: the smoothing (speculators: 0.5); with 1 a level's weight is the number of levels from it on.
    """

    detaches = True

    def __init__(self, *, loss: Loss, alpha: float = 0.5) -> None:
        if not 0 <= alpha <= 1:
            raise InputError(f"d-pace: alpha must lie between 0 and 1, not {alpha}")
        if not isinstance(loss, scored.Pointwise):
            raise CompositionError(
                "d-pace weighs the values of single predictions, which this loss does not have; use cross-entropy, tv, "
                "nla, lk-hybrid, reverse-kl or jsd"
            )
        self.loss = loss
        self.alpha = alpha

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the mean over scored predictions, a scalar."""
        values, mask = self.loss.values(student, teacher)
        return scored.mean(values * self.weights(student, teacher), mask)

    @torch.no_grad()
    def weights(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the weight of each prediction, [B, M]."""
        scored.require_texts(teacher, "d-pace")
        best, inside = scored.place(scored.gather_positions(teacher.argmax, student.position), student.support)
        right = student.log_law.gather(-1, best[..., None]).squeeze(-1).exp()  # [B, M]
        if inside is not None:
            right = torch.where(inside, right, 0)
        smooth = self.alpha + (1 - self.alpha) * right
        batch, length = teacher.tokens.shape
        levels = int(student.level.max())
        rows = torch.arange(batch, device=right.device)[:, None]
        where = rows, student.position - student.level + levels, student.level - 1  # the draft's start, and the depth
        chances = right.new_ones(batch, length + levels, levels)
        chances[where] = torch.where(student.mask, smooth, 1)
        counted = torch.zeros_like(chances, dtype=torch.bool)
        counted[where] = student.mask
        reached = chances.cumprod(-1) * counted
        return reached.flip(-1).cumsum(-1).flip(-1)[where]
