"""ParallelSpec's group-wise training: every position of the text begins a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.rollouts.shifted import along, checked_noise, feature_drafter

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Trainable
    from specframe.kernel.types import Student, Teacher


class Groups:
    """Group-wise parallel training (ParallelSpec, Section 4.1, Figure 3).

    Every position of the text begins a parallel group, whose members predict what lies 1, 2, .. levels below
    it; all groups of a text are asked in one forward. The losses are means over all members; the paper's,
    sums over a group (Eq. 3 and 4), are that times the group's size, with the same minimum.

    Args:
        noise: half the width of the uniform noise added to the features in training (EAGLE: 0.1).
    """

    def __init__(self, *, noise: float = 0.0) -> None:
        self.noise = checked_noise("groups", noise)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Predictions [B, n K] of n = L - 1 groups, a group's K side by side; `progress` changes nothing.

        Levels that lie beyond the text are masked out. A drafter that is not being trained gets no noise.
        """
        model = feature_drafter(drafter, "groups")
        return along(model, teacher, self.noise if model.module.training else 0.0, "groups")
