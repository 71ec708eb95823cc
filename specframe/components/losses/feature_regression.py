"""Regression onto the target's features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F

from specframe.components.losses.scored import at, mean
from specframe.kernel.errors import CompositionError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher


class FeatureRegression:
    """SmoothL1 between predicted and true features of the tap `last` (EAGLE Section 4.2, Falcon Eq. 2)."""

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over features and masked predictions, a scalar."""
        if student.features is None:
            raise CompositionError(
                "the loss 'feature_regression' needs a drafter that predicts features; "
                "use 'distillation' or 'cross_entropy' alone"
            )
        truth = at(teacher.features["last"], student.position)  # [B, M, D]
        loss = F.smooth_l1_loss(student.features.to(truth.dtype), truth, reduction="none")
        return mean(loss.mean(-1), student.mask)
