"""A language model along a text: the law after every token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import LanguageModelDrafter
from specframe.kernel.types import Student

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.interfaces import Trainable
    from specframe.kernel.types import Teacher


@runtime_checkable
class StatesReader(Protocol):
    """A language model that gives what its LM head reads, too."""

    def read_states(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The logits after every token of texts [B, L], and what they are made of: [B, L, V], [B, L, H]."""


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
