"""Falcon's coupled sequential glancing: a second forward pass on predictions, some of them corrected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from specframe import InputError
from specframe.neural import gather
from specframe.plugin import scored, shifted

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import FeatureDrafter, Student, Teacher, Trainable


class Glancing:
    """Coupled Sequential Glancing Distillation (Falcon Section 3.2, Figure 2), in one of three readings.

    The first forward pass reads the true pairs (f_i, t_(i+1)), with noise; its prediction at i is of position i +
    block. Its argmax tokens are compared with the target's over the scored positions; their Hamming distance, per row,
    is d. The share lambda changes linearly from `start` to `end` over the training, and N = floor(lambda d) pairs of
    the second pass's input are replaced.

    **paper**: the second pass reads a sequence of equal length, divided into the same blocks, in which predictions
    replace the truth: position j holds the pair (f^_j, t^_(j+1)) that the first pass predicted at j - block, as a
    drafter's second pass in decoding reads the predictions of its first. The first `block` positions have no prediction
    and stay true. N pairs are corrected ("glanced at"), feature and token together, in contiguous runs that precede the
    positions to be predicted: whole blocks in random order, out of those whose pairs lead to scored predictions. The
    last run is the tail of its block, so that exactly N pairs (or all) are replaced. Later in training, the second pass
    therefore relies more on the drafter's own predictions. Its predictions are scored with levels block + 1 .. 2 block,
    because they imitate the second pass of a draft.

    **features**: as **paper**, but the token paired with f^_j is the teacher's. The continuation of a drafted path with
    wrong tokens does not matter, because verification cuts it off.

    **released**, as in the authors' code (where `start` is 0.45 and `end` 0.1): the second pass reads the true pairs
    with noise. N of them are replaced by the pair that they have to predict, the feature and the token `block` ahead,
    without noise: single rows with blocks of 2, otherwise runs of up to `block` - 1 rows from every block-th row on.
    Predictions are scored with levels 1 .. block, those of replaced rows included. All texts of a batch are treated in
    this way; the authors' code changes only the first.

    No gradient flows into the first pass through its features.

    Args:
        reading: what the second forward pass reads, and what is replaced.
        start: lambda at the beginning of training (the paper: 0.4).
        end: lambda at its end (the paper: 0).
        noise: half the width of the uniform noise on the true features (the paper: 0.1).
        first: also score the first pass's predictions, with levels 1 .. block. The paper does not.
    """

    def __init__(
        self,
        *,
        reading: Literal["paper", "features", "released"] = "paper",
        start: float = 0.4,
        end: float = 0.0,
        noise: float = 0.1,
        first: bool = False,
    ) -> None:
        for name, share in (("start", start), ("end", end)):
            if not 0 <= share <= 1:
                raise InputError(f"glancing: {name} must lie between 0 and 1, not {share}")
        self.reading = reading
        self.start = start
        self.end = end
        self.noise = noise
        self.first = first

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Returns the second pass's predictions, [B, n]; with `first`, the first pass's before them, [B, 2n]."""
        model = shifted.feeding_drafter(drafter, "glancing")
        pairs = shifted.shift(teacher, model.spec, model.block)
        true = model.fuse(shifted.jitter(pairs.features, self.noise, model.spec))  # [B, n, D]
        with torch.set_grad_enabled(self.first and torch.is_grad_enabled()):
            predicted = model.unroll(true, pairs.tokens)
            first = shifted.student(model, predicted, pairs)
        assert predicted.features is not None
        chosen = first.argmax  # [B, n], guess of the token after position i + block
        wrong = (chosen != scored.gather_positions(teacher.argmax, pairs.position)) & pairs.mask
        count = (self._share(progress) * wrong.sum(-1)).long()  # [B]
        if self.reading == "released":
            inputs = _revealed(model, teacher, pairs, true, count)
            second = shifted.student(model, model.unroll(*inputs), pairs)
        else:
            own = glances(pairs, model.block, count).logical_not()
            own[:, : model.block] = False  # no prediction exists for these
            later = _later(predicted.features[:, :, 0].detach(), model.block)
            tokens = pairs.tokens
            if self.reading == "paper":
                tokens = torch.where(own, _later(chosen, model.block), tokens)
            again = model.unroll(torch.where(own[..., None], later, true), tokens)
            second = shifted.student(model, again, replace(pairs, level=pairs.level + model.block))
        return _joined(first, second) if self.first else second

    def _share(self, progress: float) -> float:
        return self.start + (self.end - self.start) * progress


def _revealed(
    model: FeatureDrafter, teacher: Teacher, pairs: shifted.Shifted, true: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns inputs in which `count` [B] rows hold what they have to predict: features [B, n, D], tokens [B, n]."""
    last = teacher.tokens.shape[1] - 1  # no token follows the last one
    shown = peeks(pairs.mask & (pairs.position < last), model.block, count)
    answers = scored.gather_positions(model.fuse(gather(model.spec, teacher.features)), pairs.position)  # [B, n, D]
    following = (pairs.position + 1).clamp(max=last)
    return (
        torch.where(shown[..., None], answers, true),
        torch.where(shown, scored.gather_positions(teacher.tokens, following), pairs.tokens),
    )


def peeks(mask: Tensor, block: int, count: Tensor) -> Tensor:
    """Returns the rows of mask [B, n] that are shown their own answer in `released`: [B, n] bool, at most `count` [B].

    With blocks of 2, these are single rows, at most every other one. With longer blocks, they are runs of 1 to block -
    1 rows, each starting at a multiple of `block`.
    """
    starts = mask & ((mask.cumsum(-1) - 1) % block == 0)
    turn = torch.rand(starts.shape, device=count.device).masked_fill(~starts, 2.0)
    runs = count if block == 2 else count // block
    begun = (turn.argsort(-1).argsort(-1) < runs[:, None]) & starts
    length = torch.randint(1, max(2, block), starts.shape, device=count.device)
    shown = begun
    for more in range(1, block - 1):
        shown = shown | _later(begun & (length > more), more)
    return shown & mask


def glances(pairs: shifted.Shifted, block: int, count: Tensor) -> Tensor:
    """Returns the inputs of the second pass that are corrected: [B, n] bool, `count` [B] of each row.

    Blocks are chosen in random order, and positions within a block from its end backwards.
    """
    batch, n = pairs.tokens.shape
    index = torch.arange(n, device=count.device)
    number = (index - pairs.level + block) // block  # [n], block number; blocks may start at any remainder
    turn = torch.rand(batch, n // block + 2, device=count.device).argsort(-1)  # [B, blocks]
    order = turn[:, number] * block + block - pairs.level  # [B, n], distinct within a row
    eligible = pairs.mask & (index >= block)
    order = order.masked_fill(~eligible, order.numel())
    rank = order.argsort(-1).argsort(-1)  # [B, n]
    return (rank < count[:, None]) & eligible


def _joined(one: Student, two: Student) -> Student:
    """Concatenates the predictions of both."""

    def pair(name: str) -> Any:
        parts = [getattr(one, name), getattr(two, name)]
        return None if parts[0] is None else torch.cat(parts, 0 if name == "level" else 1)

    names = ("logits", "position", "mask", "level", "features", "hidden")
    return replace(one, **{name: pair(name) for name in names})


def _later(values: Tensor, block: int) -> Tensor:
    """Shifts values by a block: values[:, j - block] at j; the first `block` positions are arbitrary."""
    return values.roll(block, 1)
