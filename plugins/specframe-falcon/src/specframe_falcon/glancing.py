"""Falcon's coupled sequential glancing: a second forward on predictions, some of them corrected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from specframe import InputError
from specframe.plugin import scored, shifted

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Student, Teacher, Trainable


class Glancing:
    """Coupled Sequential Glancing Distillation (Falcon Section 3.2, Figure 2), as read here.

    The first forward sees the true pairs (f_i, t_(i+1)), with noise; the prediction made at i is of
    position i + block. Its argmax tokens are compared with the target's own argmax tokens over the
    scored positions: their Hamming distance, per row, is d.

    The second forward sees a sequence of the same length, divided into the same blocks, in which predictions stand in
    for the truth: position j holds the pair (f^_j, t_(j+1)) where f^_j was predicted in the first forward at j - block,
    as a drafter's second forward in decoding holds the predictions of its first. The first `block` positions have no
    prediction and stay true. By default the token paired with f^_j is the teacher's: whether a drafted path of wrong
    tokens goes on well never matters, since verification cuts it off.

    N = floor(lambda d) of these pairs, per row, are put right ("glanced at"), feature and token together, lambda =
    start (1 - progress). They are taken in contiguous runs that precede the positions to be predicted: whole blocks in
    random order, out of those whose pairs lead to scored predictions, the last run being the tail of its block so that
    exactly N (or all there are) are replaced. So later in training the second forward leans more on the drafter's own
    features.

    Scored are the second forward's predictions, with levels block + 1 .. 2 block, since they imitate
    the second forward of a draft. Nothing flows back into the first forward through its features.

    Args:
        start: lambda at the beginning of training; it falls linearly to 0 (the paper: 0.4).
        noise: half the width of the uniform noise on the true features (the paper: 0.1).
        first: also score the first forward's predictions, with levels 1 .. block. The paper does not.
        tokens: the token paired with a predicted feature: the teacher's or the drafter's own argmax.
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
        model = shifted.feeding_drafter(drafter, "glancing")
        pairs = shifted.shift(teacher, model.spec, model.block)
        k = model.block
        true = model.fuse(shifted.jitter(pairs.features, self.noise, model.spec))  # [B, n, D]
        with torch.set_grad_enabled(self.first and torch.is_grad_enabled()):
            predicted = model.unroll(true, pairs.tokens)
            first = shifted.student(model, predicted, pairs)
        assert predicted.features is not None
        chosen = first.argmax  # [B, n], guess of the token after position i + block
        wrong = (chosen != scored.at(teacher.argmax, pairs.position)) & pairs.mask
        count = (self.start * (1 - progress) * wrong.sum(-1)).long()  # [B]
        own = glances(pairs, k, count).logical_not()
        own[:, :k] = False  # these have no prediction
        features = torch.where(own[..., None], _later(predicted.features[:, :, 0].detach(), k), true)  # [B, n, D]
        tokens = pairs.tokens
        if self.tokens == "drafter":
            tokens = torch.where(own, _later(chosen, k), tokens)
        second = model.unroll(features, tokens)
        second_look = shifted.student(model, second, replace(pairs, level=pairs.level + k))
        if not self.first:
            return second_look
        return _joined(first, second_look)


def glances(pairs: shifted.Shifted, block: int, count: Tensor) -> Tensor:
    """Returns which inputs of the second forward are corrected: [B, n] bool, `count` [B] of each row.

    Blocks come in random order, the positions of a block from its end backwards.
    """
    batch, n = pairs.tokens.shape
    index = torch.arange(n, device=count.device)
    number = (index - pairs.level + block) // block  # [n], which block: they may start at any remainder
    turn = torch.rand(batch, n // block + 2, device=count.device).argsort(-1)  # [B, blocks]
    order = turn[:, number] * block + block - pairs.level  # [B, n], distinct within a row
    eligible = pairs.mask & (index >= block)
    order = order.masked_fill(~eligible, order.numel())
    rank = order.argsort(-1).argsort(-1)  # [B, n]
    return (rank < count[:, None]) & eligible


def _joined(one: Student, two: Student) -> Student:
    """The predictions of both, the first one's before the second one's."""

    def pair(name: str) -> Any:
        parts = [getattr(one, name), getattr(two, name)]
        return None if parts[0] is None else torch.cat(parts, 0 if name == "level" else 1)

    names = ("logits", "position", "mask", "level", "features", "hidden")
    return replace(one, **{name: pair(name) for name in names})


def _later(values: Tensor, block: int) -> Tensor:
    """values[:, j - block] at j; the first `block` positions are filled with values to be ignored."""
    return values.roll(block, 1)
