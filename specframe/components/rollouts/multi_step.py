"""HASS's multi-step training: the drafter is trained on its own features, as deep as it will draft."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specframe.components.rollouts.shifted import feeding_drafter, jitter, moved, shift, student
from specframe.kernel.errors import CompositionError, InputError
from specframe.neural.masks import require_offset

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.training import Trainable
    from specframe.kernel.types import Predicted, Student, Teacher


class MultiStep:
    """Harmonised context alignment (Zhang et al. 2024, HASS; CORAL, Section 2.3).

    Step 1 is EAGLE's: entry i is the pair (f_i, t_(i+1)), attends to the true pairs up to i and predicts feature i + 1.
    In step j entry i is (the prediction of step j - 1 at i - 1, t_(i+1)) and attends to exactly the entries visible
    j - 1 levels below the root of a draft: the true pairs up to i - j + 1, then one entry of each step between, then
    itself (`visible`). The prediction of step j at i therefore equals that of decoding at level j below the root at
    i - j + 1, and levels are steps.

    As in HASS's code, gradients flow through the keys and values of predicted features but not through the features
    themselves, and all steps have equal weight. The steps' inputs are computed first, without gradients; then they are
    concatenated and one forward pass computes all predictions, [B, steps n]. The first j - 1 entries of step j have no
    root before them and are not scored.

    Args:
        steps: number of trained levels (HASS and CORAL: 3); 1 is `teacher-forced`.
        noise: half the width of the uniform noise on the true features (EAGLE, HASS: 0.1).
        noise_length: the text length, in tokens, with noise of that width; a text of L tokens gets
            noise_length / L times as much, as in EAGLE's and HASS's code (512). None, as in EAGLE's paper:
            noise independent of the length.
        offset: largest position offset in training, as in `teacher-forced`; 0: positions are unchanged.
    """

    def __init__(self, *, steps: int = 3, noise: float = 0.1, noise_length: int | None = None, offset: int = 0) -> None:
        if steps < 1:
            raise InputError(f"multi-step: steps must be at least 1, not {steps}")
        if noise_length is not None and noise_length < 1:
            raise InputError(f"multi-step: noise_length must be at least 1, not {noise_length}")
        self.steps = steps
        self.noise = noise
        self.noise_length = noise_length
        self.offset = require_offset("multi-step", offset)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Returns all steps' predictions, step after step; `progress` is ignored."""
        model = feeding_drafter(drafter, "multi-step")
        if model.block != 1:
            raise CompositionError(
                f"the rollout 'multi-step' needs a drafter of one level a forward pass (as EAGLE's), and "
                f"{type(drafter).__name__} proposes {model.block}; use 'glancing' for it"
            )
        pairs = shift(teacher, model.spec)
        batch, n = pairs.tokens.shape
        scale = self.noise_length / teacher.tokens.shape[1] if self.noise_length else 1.0
        features = model.fuse(jitter(pairs.features, self.noise * scale, model.spec))  # [B, n, D]: step 1's
        positions = moved(pairs, self.offset) if model.module.training else None

        def predict(steps: int) -> Predicted:
            tokens = pairs.tokens.repeat(1, steps)  # [B, steps n]
            if steps == 1:
                return model.unroll(features, tokens, positions)
            index = torch.arange(n, device=tokens.device).expand(batch, -1) if positions is None else positions
            mask = visible(n, steps, tokens.device)[None, None]
            return model.unroll(features, tokens, index.repeat(1, steps), mask)

        for made in range(1, self.steps):
            with torch.no_grad():
                fed = predict(made).last(n).features
                assert fed is not None
                last = fed[:, :, 0].to(features.dtype)
            features = torch.cat([features, last.roll(1, 1)], 1)  # [B, (made + 1) n]
        predicted = predict(self.steps)  # of [B, steps n]

        step = torch.arange(self.steps, device=features.device).repeat_interleave(n)  # [steps n]
        index = torch.arange(n, device=features.device).repeat(self.steps)
        mask = pairs.mask.repeat(1, self.steps) & (index >= step)
        steps = replace(pairs, position=pairs.position.repeat(1, self.steps), mask=mask, level=step + 1)
        return student(model, predicted, steps)


def visible(length: int, steps: int, device: torch.device | str | None = None) -> Tensor:
    """Returns the attention mask of `steps` concatenated copies of a text of `length`: [steps n, steps n] bool.

    Entry i of step j attends to the true entries (step 1) up to i - j + 1, and in step s = 2 .. j to the entry at
    i - j + s: itself and its ancestors in the corresponding draft.
    """
    step = torch.arange(1, steps + 1, device=device).repeat_interleave(length)  # [steps n]
    place = torch.arange(length, device=device).repeat(steps)
    diagonal = place - step  # equal for all entries on one path below a root
    true = place <= diagonal[:, None] + 1
    drafted = (diagonal == diagonal[:, None]) & (step <= step[:, None])
    return torch.where(step == 1, true, drafted)
