"""One forward on the target's own features and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.rollouts.shifted import along, checked_noise

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Trainable
    from specframe.kernel.types import Student, Teacher


class TeacherForced:
    """EAGLE's token-shifted single forward (EAGLE Section 4.2), for blocks of any length.

    The inputs are the pairs (f_i + noise, t_(i+1)); the prediction made at i imitates position
    i + block, and its level is its place in the block, 1 .. block. A drafter of several predictions an entry is
    unrolled as by `all_levels`.

    Args:
        noise: half the width of the uniform noise added to the features.
    """

    def __init__(self, *, noise: float = 0.1) -> None:
        self.noise = checked_noise("teacher_forced", noise)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions for every position that has one; `progress` changes nothing."""
        return along(drafter, teacher, self.noise, "teacher_forced")
