"""Falcon's coupled sequential glancing: a second forward on predictions, some of them corrected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from specframe.components.losses.scored import at
from specframe.components.rollouts.shifted import Shifted, feature_drafter, feature_part, jitter, shift
from specframe.kernel.errors import InputError
from specframe.kernel.types import Student
from specframe.neural.heads import support_of

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.interfaces import Trainable
    from specframe.kernel.types import Teacher


class Glancing:
    """Coupled Sequential Glancing Distillation (Falcon Section 3.2, Figure 2), as read here.

    The first forward sees the true pairs (f_i, t_(i+1)), with noise; the prediction made at i is of
    position i + block. Its argmax tokens are compared with the target's own argmax tokens over the
    scored positions: their Hamming distance, per row, is d.

    The second forward sees a sequence of the same length, divided into the same blocks, in which
    predictions stand in for the truth: position j holds the pair (f^_j, t_(j+1)) where f^_j was
    predicted in the first forward at j - block, as a drafter's second forward in decoding holds what
    its first one predicted. The first `block` positions have no prediction and stay true. By default
    the token beside f^_j is the teacher's: whether a drafted path of wrong tokens goes on well never
    matters, since verification cuts it off.

    N = floor(lambda d) of these pairs, per row, are put right ("glanced at"), feature and token
    together, lambda = start (1 - progress). They are taken in contiguous runs that precede what is to
    be predicted: whole blocks in random order, out of those whose pairs lead to scored predictions, the
    last run being the tail of its block so that exactly N (or all there are) are replaced. So later in
    training the second forward leans more on the drafter's own features.

    Scored are the second forward's predictions, with levels block + 1 .. 2 block, since they imitate
    the second forward of a draft. Nothing flows back into the first forward through its features.

    Args:
        start: lambda at the beginning of training; it falls linearly to 0 (the paper: 0.4).
        noise: half the width of the uniform noise on the true features (the paper: 0.1).
        first: also score the first forward's predictions, with levels 1 .. block. The paper does not.
        tokens: the token beside a predicted feature: the teacher's or the drafter's own argmax.
    """

    def __init__(
        self,
        *,
        start: float = 0.4,
        noise: float = 0.1,
        first: bool = False,
        tokens: Literal["teacher", "drafter"] = "teacher",
    ) -> None:
        if not 0 <= start <= 1:
            raise InputError(f"glancing: start must lie between 0 and 1, not {start}")
        self.start = start
        self.noise = noise
        self.first = first
        self.tokens = tokens

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """The second forward's predictions, [B, n]; with `first`, the first one's before them, [B, 2n]."""
        model = feature_drafter(drafter, "glancing")
        pairs = shift(teacher, model.block)
        true = jitter(pairs.features, self.noise)  # [B, n, D]
        with torch.set_grad_enabled(self.first and torch.is_grad_enabled()):
            predicted = model.predict(true, pairs.tokens)  # [B, n, P]
            logits = model.logits(predicted)  # [B, n, V]
        support = support_of(model)
        chosen = logits.argmax(-1)  # [B, n], guess of the token after position i + block
        chosen = chosen if support is None else support[chosen]
        wrong = (chosen != at(teacher.argmax, pairs.position)) & pairs.mask
        count = (self.start * (1 - progress) * wrong.sum(-1)).long()  # [B]
        glanced = glances(pairs, model.block, count)  # [B, n]

        k = model.block
        own = glanced.logical_not()
        own[:, :k] = False  # nobody predicted these
        guessed = feature_part(predicted, true)
        features = torch.where(own[..., None], _later(guessed.detach(), k), true)  # [B, n, D]
        tokens = pairs.tokens
        if self.tokens == "drafter":
            tokens = torch.where(own, _later(chosen, k), tokens)
        second = model.predict(features, tokens)  # [B, n, P]
        imitated = feature_part(second, true)
        student = Student(
            logits=model.logits(second),
            position=pairs.position,
            mask=pairs.mask,
            level=pairs.place + k,
            features=imitated,
            support=support,
        )
        if not self.first:
            return student
        return Student(
            logits=torch.cat([logits, student.logits], 1),
            position=pairs.position.repeat(1, 2),
            mask=pairs.mask.repeat(1, 2),
            level=torch.cat([pairs.place, student.level]),
            features=torch.cat([guessed, imitated], 1),
            support=support,
        )


def glances(pairs: Shifted, block: int, count: Tensor) -> Tensor:
    """Which inputs of the second forward are put right: [B, n] bool, `count` [B] of each row.

    Blocks come in random order, a block's positions from its end backwards.
    """
    batch, n = pairs.tokens.shape
    index = torch.arange(n, device=count.device)
    number = (index - pairs.place + block) // block  # [n], which block: they may start at any remainder
    turn = torch.rand(batch, n // block + 2, device=count.device).argsort(-1)  # [B, blocks]
    order = turn[:, number] * block + block - pairs.place  # [B, n], distinct within a row
    eligible = pairs.mask & (index >= block)
    order = order.masked_fill(~eligible, order.numel())
    rank = order.argsort(-1).argsort(-1)  # [B, n]
    return (rank < count[:, None]) & eligible


def _later(values: Tensor, block: int) -> Tensor:
    """values[:, j - block] at j; the first `block` positions are filled with values to be ignored."""
    return values.roll(block, 1)
