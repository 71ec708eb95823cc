"""One forward on the target's own features and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.components.rollouts.shifted import feature_drafter, feature_part, jitter, shift
from specframe.kernel.types import Student
from specframe.neural.heads import support_of

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Trainable
    from specframe.kernel.types import Teacher


class TeacherForced:
    """EAGLE's token-shifted single forward (EAGLE Section 4.2), for blocks of any length.

    The inputs are the pairs (f_i + noise, t_(i+1)); the prediction made at i imitates position
    i + block, and its level is its place in the block, 1 .. block.

    Args:
        noise: half the width of the uniform noise added to the features.
    """

    def __init__(self, *, noise: float = 0.1) -> None:
        self.noise = noise

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions for every position that has one; `progress` changes nothing."""
        model = feature_drafter(drafter, "teacher_forced")
        pairs = shift(teacher, model.block)
        predicted = model.predict(jitter(pairs.features, self.noise), pairs.tokens)  # [B, n, P]
        return Student(
            logits=model.logits(predicted),
            position=pairs.position,
            mask=pairs.mask,
            level=pairs.place,
            features=feature_part(predicted, pairs.features),
            support=support_of(model),
        )
