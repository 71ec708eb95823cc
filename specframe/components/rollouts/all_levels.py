"""Every level of a draft at once, from every position of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.rollouts.shifted import along, checked_noise

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Trainable
    from specframe.kernel.types import Student, Teacher


class AllLevels:
    """Every future offset from the last true feature (Medusa, Section 2.2.1; Hydra).

    The paths that lead to the levels are the text's own: whether a path of wrong tokens goes on well never
    matters, since verification cuts it off.

    Args:
        noise: half the width of the uniform noise added to the features.
    """

    def __init__(self, *, noise: float = 0.0) -> None:
        self.noise = checked_noise("all_levels", noise)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Predictions [B, n K] of n = L - 1 positions, a position's K levels side by side; `progress` changes nothing.

        Levels that lie beyond the text are masked out.
        """
        return along(drafter, teacher, self.noise, "all_levels")
