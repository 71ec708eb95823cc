"""One forward pass on the target's own features and tokens: of one level, all levels, or ParallelSpec's groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.rollouts.shifted import checked_noise, feature_drafter, predict_texts
from specframe.neural.masks import require_offset

if TYPE_CHECKING:
    from specframe.kernel.training import Trainable
    from specframe.kernel.types import Student, Teacher


class TeacherForced:
    """EAGLE's single forward pass on token-shifted pairs (EAGLE Section 4.2), for blocks of any length.

    The inputs are the pairs (f_i + noise, t_(i+1)); the prediction at i imitates position i + block, and
    its level is its index in the block, 1 .. block. A drafter with several predictions per entry is
    unrolled as by `all-levels`.

    Args:
        noise: half the width of the uniform noise added to the features.
        offset: largest position in training: all entries except the first few are shifted by one random offset up to it
            (LongSpec); 0: positions are unchanged.
    """

    def __init__(self, *, noise: float = 0.1, offset: int = 0) -> None:
        self.noise = checked_noise("teacher-forced", noise)
        self.offset = require_offset("teacher-forced", offset)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions for every position that has one; `progress` is ignored."""
        return predict_texts(drafter, teacher, self.noise, "teacher-forced", self.offset)


class AllLevels:
    """Every future offset from the last true feature (Medusa, Section 2.2.1; Hydra).

    The paths to the levels are those of the text: predictions after wrong tokens never matter, since
    verification rejects them.

    Args:
        noise: half the width of the uniform noise added to the features.
    """

    def __init__(self, *, noise: float = 0.0) -> None:
        self.noise = checked_noise("all-levels", noise)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Predictions [B, n K] of n = L - 1 positions, a position's K levels adjacent; `progress` is ignored.

        Levels beyond the text are masked out.
        """
        return predict_texts(drafter, teacher, self.noise, "all-levels")


class Groups:
    """Group-wise parallel training (ParallelSpec, Section 4.1, Figure 3).

    Every position of the text begins a parallel group, whose members predict the tokens 1, 2, .. levels below
    it; all groups of a text share one forward pass. Losses are means over all members; the paper's sums over
    a group (Eq. 3 and 4) are larger by the group's size and have the same minimum.

    Args:
        noise: half the width of the uniform noise added to the features in training (EAGLE: 0.1).
    """

    def __init__(self, *, noise: float = 0.0) -> None:
        self.noise = checked_noise("groups", noise)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Predictions [B, n K] of n = L - 1 groups, a group's K adjacent; `progress` is ignored.

        Levels beyond the text are masked out. A drafter in evaluation mode gets no noise.
        """
        model = feature_drafter(drafter, "groups")
        return predict_texts(model, teacher, self.noise if model.module.training else 0.0, "groups")
