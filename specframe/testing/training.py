"""A few steps of training, enough to see a loss fall."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specframe.kernel.training import Loss, Rollout, Trainable
from specframe.kernel.types import Student, Teacher


def fit(
    drafter: Trainable,
    lessons: Sequence[Teacher],
    unroll: Rollout,
    losses: Sequence[tuple[Loss, float]],
    *,
    steps: int,
    rate: float = 1e-2,
) -> list[float]:
    """The weighted loss at each of so many steps of AdamW, one lesson after the other, round and round."""
    optimizer = torch.optim.AdamW(drafter.module.parameters(), lr=rate, weight_decay=0.0)
    drafter.module.train()
    values = []
    for step in range(steps):
        lesson = lessons[step % len(lessons)]
        student = unroll(drafter, lesson, step / steps)
        assert isinstance(student, Student), "a rollout that gives its predictions in chunks is not fitted here"
        loss = torch.stack([weight * loss(student, lesson) for loss, weight in losses]).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        values.append(loss.item())
    drafter.module.eval()
    return values
