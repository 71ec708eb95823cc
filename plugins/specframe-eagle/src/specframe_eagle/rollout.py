"""EAGLE-3's training-time test: training unrolls the drafter as in drafting, with gradients through all steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from specframe import CompositionError, InputError
from specframe.neural import FeatureNetwork, NeuralDrafter, anchored_positions, gather, require_offset, student_at
from specframe.plugin import Predicted

if TYPE_CHECKING:
    from specframe.plugin import Student, Teacher, Trainable


class TrainingTimeTest:
    """The drafter's own states fed back in training, with gradients (Li et al. 2025, EAGLE-3, Section 3.2).

    Step 1 reads the target's features: entry i holds (features i, token i + 1), sees the entries up to its own and
    predicts the law after token i + 1. In step s, entry i holds the prediction of step s - 1 at i and token i + s. Its
    position is s - 1 higher; it sees step 1's entries up to i and, of every later step, entry i alone. In decoding, a
    node s - 1 levels below the root sees exactly this, so the predictions of a step equal those of decoding.

    Keys and values of earlier steps are kept, so that a step costs one forward pass over the text. Steps are levels:
    the loss `cross-entropy` with `decay: 0.8` weights them as the authors do.

    Args:
        steps: number of levels trained (the authors: 7); 1 is `teacher-forced` without noise.
        offset: highest position reached in training: all entries but the first few are shifted by one random number
            (LongSpec's anchor-offset indices); 0: positions are unchanged.
    """

    def __init__(self, *, steps: int = 7, offset: int = 0) -> None:
        if steps < 1:
            raise InputError(f"training-time-test: steps must be at least 1, not {steps}")
        self.steps = steps
        self.offset = require_offset("training-time-test", offset)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Returns all steps' predictions, [B, steps n] with n = L - 1, step after step; `progress` is ignored."""
        model = _unrolled(drafter)
        network: FeatureNetwork = model.network
        length = teacher.tokens.shape[1]
        batch, n = len(teacher.tokens), length - 1
        if n < 1:
            raise InputError("texts of one token are too short to train on; raise train.length")
        index = torch.arange(n, device=teacher.tokens.device)
        moved = None
        if model.module.training and self.offset >= n + self.steps:  # positions of the last step are steps - 1 higher
            moved = anchored_positions(batch, n, self.offset - self.steps + 1, index.device)
        first = index.expand(batch, -1) if moved is None else moved
        cache = DynamicCache()
        state = model.fuse(gather(model.spec, teacher.features)[:, :n])  # [B, n, D]
        steps: list[Predicted] = []
        for step in range(self.steps):
            tokens = pad(teacher.tokens[:, 1 + step :], (0, step))[:, :n]
            pairs = torch.cat([network.embedded(model.target.embed)(tokens), state], -1)
            outputs = network(pairs, first + step, None, cache)
            made = network.predicted(outputs[:, :, None])
            assert made.features is not None
            state = made.features[:, :, 0].to(state.dtype)
            steps.append(made)
        hidden = torch.cat([made.hidden for made in steps], 1)  # [B, steps n, 1, H]
        features = torch.cat([made.features for made in steps if made.features is not None], 1)
        predicted = replace(steps[0], hidden=hidden, features=features)
        depth = torch.arange(self.steps, device=index.device).repeat_interleave(n)  # [steps n]
        position = (index.repeat(self.steps) + 1 + depth).expand(batch, -1)
        return student_at(model, predicted, teacher, position, depth + 1)


def _unrolled(drafter: Trainable) -> NeuralDrafter[Any]:
    """Returns the drafter if it predicts one level per forward pass. Raises CompositionError otherwise."""
    if (
        not isinstance(drafter, NeuralDrafter)
        or not isinstance(drafter.network, FeatureNetwork)
        or drafter.block != 1
        or drafter.levels != 1
        or not drafter.spec.feeds
    ):
        raise CompositionError(
            "the rollout 'training-time-test' needs a drafter of decoder layers and of one level a forward "
            f"pass (eagle3, eagle), and {type(drafter).__name__} is none; "
            "use 'glancing', 'groups' or 'all-levels' for it"
        )
    return drafter
