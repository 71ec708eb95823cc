"""Language models along a text: the distribution after every token, and PARD's masks behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.model_training import read_rows
from specframe.kernel.errors import CompositionError
from specframe.kernel.training import LanguageModelDrafter
from specframe.kernel.types import Student
from specframe.neural.masks import require_shares, sample_rows

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.training import Trainable
    from specframe.kernel.types import Teacher


@runtime_checkable
class StatesReader(Protocol):
    """A language model that also returns its LM head's inputs."""

    def read_states(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The logits after every token of texts [B, L], and the LM head's inputs: [B, L, V], [B, L, H]."""


class AlongText:
    """A drafting model's predictions at every position of the texts, which are read as they are.

    With answers that the target wrote and `cross_entropy: {labels: text}` that is sequence-level distillation
    (FastDraft's last step); with `cross_entropy` or `distillation` the target's distributions are learnt (DistillSpec's
    supervised variant).
    """

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions for every position; `progress` changes nothing."""
        return read_along(drafter, teacher, "text")


def read_along(drafter: Trainable, teacher: Teacher, name: str) -> Student:
    """A language model's predictions along the teacher's texts. Raises CompositionError for another drafter."""
    model = require_language_model(drafter, name)
    hidden = None
    if isinstance(model, StatesReader):
        logits, hidden = model.read_states(teacher.tokens)
    else:
        logits = model.read_text(teacher.tokens)
    position = torch.arange(teacher.tokens.shape[1], device=teacher.tokens.device).expand_as(teacher.tokens)
    return Student(logits, position, teacher.mask, torch.ones_like(position[0]), hidden=hidden)


def require_language_model(drafter: Trainable, name: str) -> LanguageModelDrafter:
    """The drafter. Raises CompositionError if it is no language model."""
    if isinstance(drafter, LanguageModelDrafter):
        return drafter
    raise CompositionError(
        f"the rollout {name!r} trains a drafter of tokens alone, such as `model`; {type(drafter).__name__} is none"
    )


class MaskedText:
    """A drafting model's predictions along texts and at mask tokens behind every place (PARD, arXiv 2504.18583).

    The text's own places give the first level. A share of `keep` to the power of d of the mask rows d levels further
    down is kept, at least `least`, drawn anew for every step, among those whose row above was kept (conditional drop,
    COD). So a row sees the same entries as in decoding. PARD trains on the text's tokens: `cross_entropy` with `labels:
    text`.

    A drafter that is not being trained gets every row, so that the simulated tau is that of all cycles.

    Args:
        keep: the share of a level's rows that the next level keeps (published: 0.7).
        least: of a text's rows, the share that every level keeps (published: 0.2).
    """

    def __init__(self, *, keep: float = 0.7, least: float = 0.2) -> None:
        require_shares("masked_text", keep, least)
        self.keep = keep
        self.least = least

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The predictions of all places, [B, L], then those of each level's kept rows; `progress` changes nothing."""
        if not isinstance(drafter, ModelDrafter) or not drafter.masks.count or drafter.masks.token is None:
            raise CompositionError(
                "the rollout 'masked_text' trains a drafting model with mask tokens: drafter: {use: model, masks: 7, "
                "mask_token: ..}"
            )
        tokens, masks, model = teacher.tokens, drafter.masks, drafter.module
        batch, length = tokens.shape
        everything = not model.training
        keep, least = (1.0, 0.0) if everything else (self.keep, self.least)
        counts = torch.ones_like(teacher.mask) if everything else teacher.mask
        rows = sample_rows(counts, masks.count + 1, keep, least)
        index = torch.arange(length, device=tokens.device).expand(batch, -1)
        places, kept = (torch.cat([each[part] for each in rows], 1) if rows else index[:, :0] for part in (0, 1))
        below = [torch.full_like(each[0][0], level) for level, each in enumerate(rows, 1)]
        depth = torch.cat(below) if below else index[0, :0]
        logits = read_rows(model, tokens, int(masks.token or 0), places, depth, kept.bool())
        position = torch.cat([index, places + depth], 1).clamp(max=length - 1)
        there = torch.cat([torch.ones_like(index, dtype=torch.bool), kept.bool()], 1)
        if everything:  # a cycle begins behind the first token, whose own place has none before it
            there = there & (torch.cat([index, places], 1) > 0)
        level = torch.cat([torch.ones_like(index[0]), depth + 1])
        return Student(logits, position, teacher.mask.gather(1, position) & there, level)
