"""Drafting in training, for language models and for drafters that feed predicted features back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specframe import CompositionError
from specframe.neural import draft_positions, gather, student_at, visible_drafts
from specframe.plugin import Drafts, FeatureDrafter, LanguageModelDrafter, MultiStep, Student

if TYPE_CHECKING:
    from collections.abc import Callable

    from specframe.plugin import Predicted, Teacher, Trainable

    Draw = Callable[[Tensor], Tensor]
    """A function from logits [.., v] to columns [..]."""


def places(drafts: Drafts) -> tuple[Tensor, Tensor]:
    """Returns the positions of the predictions, [B, (levels + 1) K], and their levels, [(levels + 1) K]."""
    batch, count = drafts.roots.shape
    after = torch.arange(drafts.length, drafts.length + drafts.count, device=drafts.roots.device)
    level = torch.arange(1, drafts.levels + 2, device=after.device).repeat_interleave(count)
    return torch.cat([drafts.roots, after.expand(batch, -1)], 1), level


@dataclass(frozen=True)
class TextDrafting:
    """Drafts of a language model."""

    model: LanguageModelDrafter
    first = 0

    def choices(self, teacher: Teacher, levels: int, draw: Draw) -> Tensor:
        """Returns the token drawn after each position, equal for every root: [B, L, levels]."""
        drawn = draw(self.model.read_text(teacher.tokens))  # [B, L]
        return torch.stack([drawn.roll(-step, 1) for step in range(levels)], 2)

    def extend(self, teacher: Teacher, drafts: Drafts, tokens: Tensor, fed: Tensor | None) -> tuple[Tensor, None]:
        """Returns the logits [B, K, v] below the last level of drafts, given their tokens [B, L + levels K].

        No features are fed back.
        """
        logits = self.model.read_text(tokens, drafts)
        count = drafts.roots.shape[1]
        if drafts.levels:
            return logits[:, -count:], None
        return logits[torch.arange(len(tokens), device=tokens.device)[:, None], drafts.roots], None

    def predict(self, teacher: Teacher, drafts: Drafts, fed: Tensor | None) -> Student:
        """Returns the predictions at all roots and draft tokens, level after level: [B, (levels + 1) K].

        Tokens are the teacher's [B, L + levels K], and so is the mask. Gradients reach the module.
        """
        position, level = places(drafts)
        logits = self.model.read_text(teacher.tokens, drafts)
        rows = torch.arange(len(position), device=position.device)[:, None]
        return Student(logits[rows, position], position, teacher.mask.gather(1, position), level)


@dataclass(frozen=True)
class FeatureDrafting:
    """Drafts of a drafter that reads pairs (features i, token i + 1) and feeds its predictions back."""

    model: FeatureDrafter
    first = 1

    def choices(self, teacher: Teacher, levels: int, draw: Draw) -> Tensor:
        """Returns the tokens drawn at each level, with features fed back as `multi-step` unrolls them."""
        made = MultiStep(steps=levels, noise=0.0)(self.model, teacher, 1.0)
        columns = draw(made.logits)  # [B, levels (L - 1)]
        drawn = columns if made.support is None else made.support[columns]
        found = torch.full((*teacher.tokens.shape, levels), -1, device=drawn.device)
        root = made.position - made.level + 1  # [B, M]
        inside = root > 0
        rows = torch.arange(len(root), device=root.device)[:, None].expand_as(root)
        depth = (made.level - 1).expand_as(root)
        found[rows[inside], root[inside], depth[inside]] = drawn[inside]
        return found

    def extend(
        self, teacher: Teacher, drafts: Drafts, tokens: Tensor, fed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the logits of the last level's entries, and their predicted features, which are fed back."""
        predicted = self._unroll(teacher, drafts, tokens, fed)
        entry = self._entries(drafts)[:, -drafts.roots.shape[1] :]
        assert predicted.features is not None
        features = _gathered(predicted.features[:, :, 0], entry)
        last = replace(
            predicted,
            hidden=_gathered(predicted.hidden, entry),
            features=_gathered(predicted.features, entry),
            confidence=None,
        )
        features = features.to(teacher.features[self.model.spec.taps[0]].dtype)
        return self.model.read(last)[:, :, 0], features if fed is None else torch.cat([fed, features], 1)

    def predict(self, teacher: Teacher, drafts: Drafts, fed: Tensor | None) -> Student:
        """Predicts at the entries of texts and drafts in one forward pass."""
        predicted = self._unroll(teacher, drafts, teacher.tokens, fed)
        entry = self._entries(drafts)
        assert predicted.features is not None
        hidden, features = _gathered(predicted.hidden, entry), _gathered(predicted.features, entry)
        position, level = places(drafts)
        predicted = replace(predicted, hidden=hidden, features=features, confidence=None)
        return student_at(self.model, predicted, teacher, position, level)

    def _unroll(self, teacher: Teacher, drafts: Drafts, tokens: Tensor, fed: Tensor | None) -> Predicted:
        """Returns the predictions at the entries of the texts, and at those of the drafts' tokens after them."""
        length = drafts.length
        true = {tap: teacher.features[tap][:, : length - 1] for tap in self.model.spec.reads}
        features = self.model.fuse(gather(self.model.spec, true))
        if not drafts.levels:
            return self.model.unroll(features, tokens[:, 1:length])
        assert fed is not None
        pairs = Drafts(length - 1, drafts.roots - 1, drafts.levels)  # entry i holds token i + 1
        seen = visible_drafts(pairs)[:, None]
        return self.model.unroll(torch.cat([features, fed], 1), tokens[:, 1:], draft_positions(pairs), seen)

    def _entries(self, drafts: Drafts) -> Tensor:
        """Returns the entries that predict the successors of roots and drafted tokens: [B, (levels + 1) K]."""
        return places(drafts)[0] - 1


Drafting = TextDrafting | FeatureDrafting
"""A drafter's drafts along texts: below positions from `first` on, where the tokens above are the text's own."""


def drafting(drafter: Trainable) -> Drafting:
    """Returns the drafting of this drafter. Raises CompositionError if its drafts cannot be computed in parallel."""
    if isinstance(drafter, LanguageModelDrafter):
        return TextDrafting(drafter)
    if (
        isinstance(drafter, FeatureDrafter)
        and drafter.block == drafter.levels == 1
        and drafter.spec.feeds
        and drafter.spec.side_by_side
    ):
        return FeatureDrafting(drafter)
    raise CompositionError(
        "the rollout 'replay' takes a language model, or a drafter of one level a forward pass that feeds its own "
        f"features back, such as `model` and `eagle`; {type(drafter).__name__} is neither"
    )


def _gathered(values: Tensor, entry: Tensor) -> Tensor:
    """Gathers values [B, n, ..] at entries [B, m]: [B, m, ..]."""
    return values[torch.arange(len(entry), device=entry.device)[:, None], entry]
