"""Rollouts of language models on texts: unchanged, with PARD's mask tokens, or with answers sampled by the drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.model_training import read_rows
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.training import LanguageModelDrafter
from specframe.kernel.types import Student
from specframe.neural.masks import require_shares, sample_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from specframe.kernel.training import Trainable
    from specframe.kernel.types import Teacher


class AlongText:
    """A drafting model's predictions at every position of the unchanged texts.

    With answers written by the target and `cross-entropy: {labels: text}` it is sequence-level distillation
    (FastDraft's last step); with `cross-entropy` or `distillation` the drafter learns the target's distributions
    (DistillSpec's supervised variant).
    """

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions for every position; `progress` is ignored."""
        return read_along(drafter, teacher, "text")


def read_along(drafter: Trainable, teacher: Teacher, name: str) -> Student:
    """A language model's predictions along the teacher's texts. Raises CompositionError for other drafters.

    A method `read_states` of the drafter also gives the LM head's inputs: tokens [B, L] -> [B, L, V], [B, L, H].
    """
    model = require_language_model(drafter, name)
    read: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(model, "read_states", None)
    logits, hidden = (model.read_text(teacher.tokens), None) if read is None else read(teacher.tokens)
    position = torch.arange(teacher.tokens.shape[1], device=teacher.tokens.device).expand_as(teacher.tokens)
    return Student(logits, position, teacher.mask, torch.ones_like(position[0]), hidden=hidden)


def require_language_model(drafter: Trainable, name: str) -> LanguageModelDrafter:
    """The drafter. Raises CompositionError if it is not a language model."""
    if isinstance(drafter, LanguageModelDrafter):
        return drafter
    raise CompositionError(
        f"the rollout {name!r} trains a drafter of tokens alone, such as `model`; {type(drafter).__name__} is none"
    )


class MaskedText:
    """A drafting model's predictions along texts and at mask tokens after every position (PARD, arXiv 2504.18583).

    The text's positions give the first level. Of the mask rows d levels further down, a share of keep^d is kept, at
    least `least`, sampled in every step from the rows whose predecessor was kept (conditional drop, COD). Each row
    thus attends to the same entries as in decoding. PARD trains on the text's tokens: `cross-entropy` with
    `labels: text`.

    In evaluation mode all rows are kept, so that the simulated tau covers all cycles.

    Args:
        keep: the share of a level's rows that the next level keeps (published: 0.7).
        least: the smallest share of a text's rows that a level keeps (published: 0.2).
    """

    def __init__(self, *, keep: float = 0.7, least: float = 0.2) -> None:
        require_shares("masked-text", keep, least)
        self.keep = keep
        self.least = least

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions of all positions, [B, L], then those of each level's kept rows; `progress` is ignored."""
        if not isinstance(drafter, ModelDrafter) or not drafter.masks.count or drafter.masks.token is None:
            raise CompositionError(
                "the rollout 'masked-text' trains a drafting model with mask tokens: drafter: {use: model, masks: 7, "
                "mask_token: ..}"
            )
        tokens, masks, model = teacher.tokens, drafter.masks, drafter.module
        batch, length = tokens.shape
        everything = not model.training
        keep, least = (1.0, 0.0) if everything else (self.keep, self.least)
        counts = torch.ones_like(teacher.mask) if everything else teacher.mask
        rows = sample_rows(counts, masks.count + 1, keep, least)
        index = torch.arange(length, device=tokens.device).expand(batch, -1)
        places, real = (torch.cat([each[part] for each in rows], 1) if rows else index[:, :0] for part in (0, 1))
        depths = [torch.full_like(each[0][0], level) for level, each in enumerate(rows, 1)]
        depth = torch.cat(depths) if depths else index[0, :0]
        logits = read_rows(model, tokens, int(masks.token or 0), places, depth, real.bool())
        position = torch.cat([index, places + depth], 1).clamp(max=length - 1)
        mask = torch.cat([torch.ones_like(index, dtype=torch.bool), real.bool()], 1)
        if everything:  # no cycle begins at the first token, which has no token before it
            mask = mask & (torch.cat([index, places], 1) > 0)
        level = torch.cat([torch.ones_like(index[0]), depth + 1])
        return Student(logits, position, teacher.mask.gather(1, position) & mask, level)


class OnPolicy:
    """A drafting model's predictions along its own samples (DistillSpec, Zhou et al. 2023, on-policy data).

    In a `share` of the texts the answer is replaced by a sample of the current drafter, from the first unmasked
    position to the end of the text, even if it held several answers. The target then scores these texts. The other
    texts keep the answers of the data, ideally the target's own. No gradient flows through the sampling.

    Packed texts hold several answers; without `train.pack` each text has one.

    Args:
        share: the share of texts that the drafter samples, 1 for all; DistillSpec uses one half.
        temperature: the sampling temperature.
    """

    def __init__(self, *, share: float = 1.0, temperature: float = 1.0) -> None:
        if not 0 <= share <= 1:
            raise InputError(f"on-policy: share must lie between 0 and 1, not {share}")
        if temperature <= 0:
            raise InputError(f"on-policy: temperature must be above 0, not {temperature}")
        self.share = share
        self.temperature = temperature

    def rewrite(self, drafter: Trainable, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The texts [B, L] for the target to score, and the mask of their positions, [B, L]."""
        model = require_language_model(drafter, "on-policy")
        length = tokens.shape[1]
        own = (torch.rand(len(tokens), device=tokens.device) < self.share) & mask.any(1)  # [B]
        if not own.any():
            return tokens, mask
        first = mask.long().argmax(1)  # [B], the first unmasked position: the next token is the first sampled
        start = (first + 1)[own]
        written = model.continue_text(tokens[own], start, self.temperature)
        tokens, mask = tokens.clone(), mask.clone()
        tokens[own] = written
        places = torch.arange(length, device=tokens.device)
        ends = torch.tensor(sorted(getattr(drafter, "ends", ())), device=tokens.device, dtype=tokens.dtype)
        over = torch.isin(written, ends) & (places >= start[:, None])  # after an end-of-sequence token of the drafter
        mask[own] = (places >= first[own][:, None]) & (over.long().cumsum(1) == 0) & (places < length - 1)
        return tokens, mask

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions for every position of the rewritten texts; `progress` is ignored."""
        return read_along(drafter, teacher, "on-policy")
