"""Every level of a draft at once, from every position of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch.nn.functional as F

from specframe.components.rollouts.shifted import jitter, levels_ahead
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Trainable
from specframe.kernel.types import Student
from specframe.neural.heads import support_of

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Teacher


@runtime_checkable
class LevelsDrafter(Trainable, Protocol):
    """A trainable drafter with a head per level (Medusa, Hydra, Chimera)."""

    levels: int
    """How many levels it drafts, K."""

    def foresee(self, features: Tensor, tokens: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The logits of all levels from every position, [B, n, D], [B, n + K - 1] -> [B, n, K, V].

        Position i pairs (features_i, tokens_i = token i + 1). Level k imitates the law after position i + k;
        of the future it may see tokens_i .. tokens_(i+k-1), the path that leads there. A drafter that
        predicts the feature at position i + k, too (Chimera), gives these beside the logits, [B, n, K, D].
        """
        ...


class AllLevels:
    """Every future offset from the last true feature (Medusa, Section 2.2.1; Hydra).

    The paths that lead to the levels are the text's own: whether a path of wrong tokens goes on well never
    matters, since verification cuts it off.

    Args:
        noise: half the width of the uniform noise added to the features.
    """

    def __init__(self, *, noise: float = 0.0) -> None:
        if noise < 0:
            raise InputError(f"all_levels: noise must not be negative, not {noise}")
        self.noise = noise

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Predictions [B, n K] of n = L - 1 positions, a position's K levels side by side; `progress` changes nothing.

        Levels that lie beyond the text are masked out.
        """
        if not isinstance(drafter, LevelsDrafter):
            raise CompositionError(
                f"the rollout 'all_levels' needs a drafter with a head per level (as Medusa's and Hydra's), and "
                f"{type(drafter).__name__} has none; use the rollout made for it, such as teacher_forced"
            )
        position, mask, level = levels_ahead(teacher, drafter.levels)
        tokens = F.pad(teacher.tokens[:, 1:], (0, drafter.levels - 1))  # [B, n + K - 1]; what is padded is masked out
        foreseen = drafter.foresee(jitter(teacher.features["last"][:, :-1], self.noise), tokens)
        logits, predicted = foreseen if isinstance(foreseen, tuple) else (foreseen, None)  # [B, n, K, V]
        return Student(
            logits=logits.flatten(1, 2),
            position=position,
            mask=mask,
            level=level,
            features=None if predicted is None else predicted.flatten(1, 2),
            support=support_of(drafter),
        )
