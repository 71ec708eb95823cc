"""Accuracy of each head's best choices, by rank, on texts not used in training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from specframe import InputError
from specframe.plugin import Student

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Rollout, Teacher, Trainable


@torch.no_grad()
def rank_accuracies(
    drafter: Trainable, rollout: Rollout, teachers: Iterable[Teacher], ranks: int = 10
) -> list[list[float]]:
    """Returns accuracies[k][r], the share of level k + 1's predictions whose choice of rank r is the target's argmax.

    The drafter is bound to the target whose `teach` returns the teachers; the rollout is the one used in its training.
    `specframe.plugin.optimal_product_shape` turns the result into trees. Raises InputError if no prediction was scored.
    """
    was_training = drafter.module.training
    drafter.module.eval()
    parts = []
    for teacher in teachers:
        made = rollout(drafter, teacher, 1.0)
        students = [made] if isinstance(made, Student) else [part() for part in made.parts]
        parts += [_count(student, teacher, ranks) for student in students]
    drafter.module.train(was_training)
    counts = sum(parts, torch.zeros(1, ranks + 1, dtype=torch.int64))  # [levels, ranks + 1], the total last
    if not bool(counts[:, ranks].all()):
        raise InputError("there is nothing to measure: the texts are too short, or nothing in them counts")
    shares: list[list[float]] = (counts[:, :ranks] / counts[:, ranks:]).tolist()
    return shares


def _count(student: Student, teacher: Teacher, ranks: int) -> Tensor:
    """Counts the correct choices of each rank and, last, all predictions, per level: [levels, ranks + 1]."""
    rows = torch.arange(len(student.position), device=student.position.device)[:, None]
    truth = teacher.logits.argmax(-1)[rows, student.position]  # [B, M]
    width = min(ranks, student.logits.shape[-1])
    right = student.logits.topk(width).indices == truth[..., None]  # [B, M, width]
    right = torch.nn.functional.pad(right, (0, ranks - width))
    hits = torch.cat([right, torch.ones_like(right[..., :1])], -1) & student.mask[..., None]
    levels = hits.new_zeros(int(student.level.max()), ranks + 1, dtype=torch.int64)
    return levels.index_add_(0, student.level - 1, hits.sum(0)).cpu()
