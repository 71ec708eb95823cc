"""Draft-OPD's replay: the drafter's drafts from the positions where verification rejected it, taught by the target."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specframe import InputError
from specframe.neural import support_of
from specframe.plugin import Drafts, Teacher, text_of
from specframe_models.alignment.drafting import Drafting, drafting
from specframe_models.alignment.walk import choose, failed_roots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specframe.plugin import NeuralTarget, Student, Trainable


@dataclass(frozen=True)
class Replayed(Teacher):
    """The target's answers for texts and for the drafts after them."""

    fed: Tensor | None = None  # [B, levels K, D], predicted features that replace the drafts' true ones


class Replay:
    """A drafter's predictions along its own drafts, from where verification rejected it (Draft-OPD, 2605.29343).

    Texts are the target's answers, so speculative decoding is simulated along them: a cycle drafts `levels` tokens, and
    those that differ from the text are rejected. From the roots of such cycles the drafter drafts anew. The target
    gives its distribution after every token of these drafts, accepted or not, for all drafts of a text in one forward
    pass. The predictions of all levels are scored. The drafter thus learns the target's answers after its own mistakes,
    which the target's texts do not contain. No gradient flows through the drafting.

    For language models and for drafters that feed predicted features back, such as `eagle` and `eagle3`; these features
    are fixed, as in `multi-step`. It is meant for a drafter that was already trained on texts. Losses must compare with
    the target's distribution, because no text contains the tokens after a drafted one.

    Source: arXiv 2605.29343, by its abstract; the number of roots and the drafting are this project's choices.

    Args:
        levels: number of tokens in a draft, as in decoding.
        roots: maximum number of drafts per text; if more were rejected, these are chosen at random.
        temperature: of the drafting, 0: the most probable tokens.
    """

    def __init__(self, *, levels: int = 4, roots: int = 16, temperature: float = 0.0) -> None:
        for option, value in (("levels", levels), ("roots", roots)):
            if value < 1:
                raise InputError(f"replay: {option} must be at least 1, not {value}")
        if not temperature >= 0:
            raise InputError(f"replay: temperature must not be negative, not {temperature}")
        self.levels = levels
        self.roots = roots
        self.temperature = temperature

    def ask(self, target: NeuralTarget, drafter: Trainable, tokens: Tensor, mask: Tensor) -> Replayed:
        """Returns the target's answers for texts [B, L] and the drafts after them; mask [B, L] is of a cycle's text.

        The teacher's mask marks the roots and the drafts' tokens up to the first that ends a text.
        """
        model, length = drafting(drafter), tokens.shape[1]
        with torch.no_grad(), _evaluated(drafter):
            teacher = target.teach(tokens, mask)
            choices = model.choices(teacher, self.levels, self._draw)
            roots, real = choose(failed_roots(choices, tokens, mask), self.roots)
            drafts, drafted, fed = self._draft(model, drafter, teacher, Drafts(length, roots, 0))
        counted = torch.zeros_like(mask).scatter(1, roots, real)
        ends = torch.tensor(sorted(text_of(target).ends), device=tokens.device, dtype=tokens.dtype)
        over = torch.isin(drafted[:, length:], ends).unflatten(1, (drafts.levels, -1)).long().cumsum(1)
        after = real[:, None] & (over == 0)  # [B, levels, K]
        answers = target.teach(drafted, torch.cat([counted, after.flatten(1)], 1), drafts)
        return Replayed(**{each.name: getattr(answers, each.name) for each in fields(Teacher)}, fed=fed)

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Returns the predictions along the drafts or, for a teacher without drafts, the texts; ignores `progress`."""
        model = drafting(drafter)
        if isinstance(teacher, Replayed) and teacher.drafts is not None:
            return model.predict(teacher, teacher.drafts, teacher.fed)
        length = teacher.tokens.shape[1]
        every = torch.arange(model.first, length, device=teacher.tokens.device).expand(len(teacher.tokens), -1)
        return model.predict(teacher, Drafts(length, every, 0), None)

    def _draft(
        self, model: Drafting, drafter: Trainable, teacher: Teacher, drafts: Drafts
    ) -> tuple[Drafts, Tensor, Tensor | None]:
        """Returns the drafts below the roots without their last tokens, which predict nothing; fed-back features."""
        support = support_of(drafter)
        tokens, fed = teacher.tokens, None
        for level in range(1, self.levels):
            logits, fed = model.extend(teacher, drafts, tokens, fed)
            drawn = self._draw(logits)
            tokens = torch.cat([tokens, drawn if support is None else support[drawn]], 1)
            drafts = Drafts(drafts.length, drafts.roots, level)
        return drafts, tokens, fed

    def _draw(self, logits: Tensor) -> Tensor:
        """Draws columns [..] of logits [.., v]."""
        if self.temperature == 0:
            return logits.argmax(-1)
        law = (logits.float() / self.temperature).softmax(-1)
        return torch.multinomial(law.flatten(0, -2), 1).view(law.shape[:-1])


@contextmanager
def _evaluated(drafter: Trainable) -> Iterator[None]:
    """Switches dropout off while drafting."""
    module, training = drafter.module, drafter.module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
