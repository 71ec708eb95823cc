"""How good a drafter is on held-back texts, without decoding: accuracy per level, and tau of a chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from specframe.components.losses.scored import at
from specframe.kernel.interfaces import FeatureDrafter, Loss, Rollout, Trainable
from specframe.kernel.types import Student, Teacher

Losses = Sequence[tuple[Loss, float, str]]
"""Each loss with its weight and name."""

LEVELS = 8
"""How deep the simulated chain goes, at most."""
CUTS = 4
"""Chains per text."""


@torch.no_grad()
def measure(
    drafter: Trainable, teachers: Iterable[Teacher], losses: Losses, rollout: Rollout
) -> dict[str, float]:
    """The weighted `loss`, each loss by name, `accuracy.N` per level and the simulated `tau`.

    Accuracy is how often the drafter's argmax is the target's. Drafters that predict features are
    unrolled as greedy decoding of a chain unrolls them (`unroll`); for others tau is 1 plus the sum of
    the running products of the rollout's accuracies, as if levels were independent.
    """
    totals = [0.0] * len(losses)
    scored = 0
    counts = torch.zeros(2, 0)
    for teacher in teachers:
        student = rollout(drafter, teacher, 1.0)
        count = int(student.mask.sum())
        for index, (loss, _, _) in enumerate(losses):
            totals[index] += float(loss(student, teacher)) * count
        scored += count
        if isinstance(drafter, FeatureDrafter):
            counts = _add(counts, unroll(drafter, teacher))
        else:
            counts = _add(counts, agreement(student, teacher))
    means = [total / max(1, scored) for total in totals]
    figures = {"loss": sum(w * mean for (_, w, _), mean in zip(losses, means, strict=True))}
    figures |= {name: mean for (_, _, name), mean in zip(losses, means, strict=True)}
    shares = [right / asked for right, asked in takewhile(lambda pair: pair[1], counts.T.tolist())]
    figures |= {f"accuracy.{level}": share for level, share in enumerate(shares, 1)}
    return figures | {"tau": _tau(shares)}


def agreement(student: Student, teacher: Teacher) -> Tensor:
    """How often the argmax was right, and how often asked, per level: [2, levels], 0 = level 1."""
    same = student.logits.argmax(-1) == at(teacher.logits, student.position).argmax(-1)  # [B, M]
    counts = torch.stack([(same & student.mask).sum(0), student.mask.sum(0)]).float()  # [2, M]
    levels = counts.new_zeros(2, int(student.level.max()) if student.level.numel() else 0)
    levels.index_add_(1, student.level - 1, counts)
    return levels.cpu()


def unroll(drafter: FeatureDrafter, teacher: Teacher) -> Tensor:
    """The same for chains that go on until the first wrong token, from several places of every text.

    The first forward sees true features up to a place of the text, every further one the predicted
    features of those before it as well, as in decoding; the tokens beside them are the text's, since a
    chain only goes on while they are right. Level n is asked for in chains right up to n - 1, so the
    products of the accuracies are the shares of chains that come so far.
    """
    k, length = drafter.block, teacher.tokens.shape[1]
    features, tokens = teacher.features["last"], teacher.tokens
    truth = teacher.logits.argmax(-1)  # [B, L]
    first = max(k, 2)  # inputs of the first forward: at least a block
    forwards = min(max(1, LEVELS // k), (length - first - 1) // k)
    if forwards < 1:
        return torch.zeros(2, 0)
    depth = forwards * k
    last = length - depth - 1
    total = torch.zeros(2, depth)
    for size in sorted({first + (last - first) * cut // max(1, CUTS - 1) for cut in range(CUTS)}):
        known = features[:, :size]
        for _ in range(forwards):
            n = known.shape[1]
            predicted = drafter.predict(known, tokens[:, 1 : n + 1])[:, n - k :]  # [B, k, D]
            known = torch.cat([known, predicted.to(known.dtype)], 1)
        guesses = drafter.logits(known[:, size:]).argmax(-1)  # [B, depth]
        place = slice(size, size + depth)
        alive = (guesses == truth[:, place]).long().cumprod(1)  # [B, depth]
        reached = torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], 1)
        counts = teacher.mask[:, place].long().cumprod(1)  # a chain ends where nothing counts any more
        total += torch.stack([(alive * counts).sum(0), (reached * counts).sum(0)]).cpu()
    return total


def _add(one: Tensor, two: Tensor) -> Tensor:
    """The sum of two counts [2, levels] that may differ in their levels."""
    width = max(one.shape[1], two.shape[1])
    return F.pad(one, (0, width - one.shape[1])) + F.pad(two, (0, width - two.shape[1]))


def _tau(shares: Sequence[float]) -> float:
    """1 + a1 + a1 a2 + ...: tokens per cycle of a chain, the bonus included."""
    product, tau = 1.0, 1.0
    for share in shares:
        product *= share
        tau += product
    return tau
