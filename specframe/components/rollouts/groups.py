"""ParallelSpec's group-wise training: every position of the text begins a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from specframe.components.rollouts.shifted import jitter, levels_ahead
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Trainable
from specframe.kernel.types import Student
from specframe.neural.heads import support_of

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Teacher


@runtime_checkable
class GroupDrafter(Trainable, Protocol):
    """A trainable drafter that predicts the features of several levels at once, seeing none of their tokens."""

    levels: int
    """How many levels one forward proposes: the size of a group."""

    def foretell(self, features: Tensor, tokens: Tensor) -> Tensor:
        """The features of all levels from every position, [B, n, D], [B, n] -> [B, n, K, D].

        Position i pairs (features_i, tokens_i = token i + 1); level k predicts feature i + k and sees what
        a draft from there sees: the pairs up to i, and nothing of any other position's group.
        """
        ...

    def logits(self, features: Tensor) -> Tensor:
        """The drafter's logits for predicted features: [.., D] -> [.., V]."""
        ...


class Groups:
    """Group-wise parallel training (ParallelSpec, Section 4.1, Figure 3).

    Every position of the text begins a parallel group, whose members predict what lies 1, 2, .. levels below
    it; all groups of a text are asked in one forward. The losses are means over all members; the paper's,
    sums over a group (Eq. 3 and 4), are that times the group's size, with the same minimum.

    Args:
        noise: half the width of the uniform noise added to the features in training (EAGLE: 0.1).
    """

    def __init__(self, *, noise: float = 0.0) -> None:
        if noise < 0:
            raise InputError(f"groups: noise must not be negative, not {noise}")
        self.noise = noise

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Predictions [B, n K] of n = L - 1 groups, a group's K side by side; `progress` changes nothing.

        Levels that lie beyond the text are masked out. A drafter that is not being trained gets no noise.
        """
        if not isinstance(drafter, GroupDrafter):
            raise CompositionError(
                f"the rollout 'groups' needs a drafter that predicts several levels at once (as ParallelSpec's), and "
                f"{type(drafter).__name__} does not; use the rollout made for it, such as teacher_forced"
            )
        position, mask, level = levels_ahead(teacher, drafter.levels)
        features = jitter(teacher.features["last"][:, :-1], self.noise if drafter.module.training else 0.0)
        predicted = drafter.foretell(features, teacher.tokens[:, 1:]).flatten(1, 2)  # [B, n K, D]
        return Student(
            logits=drafter.logits(predicted),
            position=position,
            mask=mask,
            level=level,
            features=predicted,
            support=support_of(drafter),
        )
