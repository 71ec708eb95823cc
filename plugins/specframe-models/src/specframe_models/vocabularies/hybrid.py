"""OmniDraft's loss: distributions where known, and the tokens themselves within n-grams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specframe import InputError
from specframe_models.vocabularies.teaching import Translated

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Loss, Student, Teacher


class Hybrid:
    """Another loss where the target's distribution is known, and -log q of the next token within n-grams (OmniDraft).

    The distributions are over the drafter's tokens. A token of both vocabularies counts as it is; an n-gram counts for
    its first token, so that its mass is counted once. In an n-gram that the target wrote, the tokens after the first
    are learnt. With `distillation: {alpha: 1}` and equal weights this equals `distillation` alone; other divergences
    need it, because they measure a single token differently. For a drafter with the target's own tokens it equals the
    other loss.

    Source: OmniDraft (arXiv 2507.02659), its hybrid distillation. The weights of its terms are this project's choice.

    Args:
        loss: the loss where a distribution is known, such as `distillation` or `reverse-kl`.
        ngrams: the weight of a position within an n-gram.
    """

    rowwise = True

    def __init__(self, *, loss: Loss, ngrams: float = 1.0) -> None:
        if not ngrams >= 0:
            raise InputError(f"hybrid: ngrams must not be negative, not {ngrams:g}")
        self.loss, self.ngrams = loss, ngrams
        self.detaches = getattr(loss, "detaches", False)

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the mean over scored predictions, a scalar."""
        if not isinstance(teacher, Translated):
            return self.loss(student, teacher)
        rows = torch.arange(len(student.position), device=student.position.device)[:, None]
        inside = teacher.ngrams[rows, student.position] & student.mask  # [B, M]
        others = student.mask & ~inside
        following = teacher.argmax[rows, student.position]
        surprise = -student.log_law.gather(-1, following[..., None]).squeeze(-1)
        total = self.loss(replace(student, mask=others), teacher) * others.sum()
        return (total + self.ngrams * torch.where(inside, surprise, 0).sum()) / student.mask.sum().clamp(min=1)
