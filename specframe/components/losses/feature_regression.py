"""Regression onto the target's features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F

from specframe.components.losses.scored import gather_positions, mean
from specframe.kernel.errors import CompositionError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class FeatureRegression:
    """The distance between predicted features and the target's features of the tap `last`.

    Args:
        distance: SmoothL1 (EAGLE Section 4.2, Falcon Eq. 2), or the squared error (Chimera Eq. 5).
    """

    def __init__(self, *, distance: Literal["smooth_l1", "mse"] = "smooth_l1") -> None:
        self.distance = distance

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over features and masked predictions, a scalar."""
        if student.features is None:
            raise CompositionError(
                "the loss 'feature-regression' needs a drafter that predicts features; "
                "use 'distillation' or 'cross-entropy' alone"
            )
        truth = gather_positions(teacher.features[student.tap], student.position)  # [B, M, D]
        measure = F.mse_loss if self.distance == "mse" else F.smooth_l1_loss
        loss = measure(student.features.to(truth.dtype), truth, reduction="none")
        return mean(loss.mean(-1), student.mask)
