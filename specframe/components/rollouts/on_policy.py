"""On-policy texts: written by the drafter itself, taught by the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe.components.rollouts.text import read_along, require_language_model
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.training import Trainable
    from specframe.kernel.types import Student, Teacher


class OnPolicy:
    """A drafting model's predictions along texts of its own (DistillSpec, Zhou et al. 2023, on-policy data).

    In a `share` of the texts the answer is replaced by a sample of the drafter as it is now: from the first position
    that counts to the text's end, however many answers it held. The target then teaches these texts. The others stay:
    answers in the data, best written by the target itself. Nothing is learnt through the sampling.

    Texts that are packed hold several answers; without `train.pack` there is one.

    Args:
        share: the share of the texts that the drafter writes, 1 for all; DistillSpec mixes one half.
        temperature: at which it writes.
    """

    def __init__(self, *, share: float = 1.0, temperature: float = 1.0) -> None:
        if not 0 <= share <= 1:
            raise InputError(f"on_policy: share must lie between 0 and 1, not {share}")
        if temperature <= 0:
            raise InputError(f"on_policy: temperature must be above 0, not {temperature}")
        self.share = share
        self.temperature = temperature

    def rewrite(self, drafter: Trainable, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The texts [B, L] to be taught, and which of their positions count, [B, L]."""
        model = require_language_model(drafter, "on_policy")
        length = tokens.shape[1]
        own = (torch.rand(len(tokens), device=tokens.device) < self.share) & mask.any(1)  # [B]
        if not own.any():
            return tokens, mask
        first = mask.long().argmax(1)  # [B], the first position whose law counts: the next token is the first written
        start = (first + 1)[own]
        written = model.continue_text(tokens[own], start, self.temperature)
        tokens, mask = tokens.clone(), mask.clone()
        tokens[own] = written
        places = torch.arange(length, device=tokens.device)
        ends = torch.tensor(sorted(getattr(drafter, "ends", ())), device=tokens.device, dtype=tokens.dtype)
        over = torch.isin(written, ends) & (places >= start[:, None])  # an end of sequence that the drafter wrote
        mask[own] = (places >= first[own][:, None]) & (over.long().cumsum(1) == 0) & (places < length - 1)
        return tokens, mask

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions for every position of the texts as they were rewritten; `progress` changes nothing."""
        return read_along(drafter, teacher, "on_policy")
