"""Cross-Step Representation Alignment: makes the steps of a multi-step training predict similar features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize

from specframe import CompositionError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Student, Teacher


class CSRA:
    """InfoNCE between the features of a rollout's steps (Weng et al. 2025, CORAL, Section 3.1, Eq. 2).

    A prediction of step t has t positive views: the predictions of steps 1 .. t - 1 at its position, and the target's
    feature, so that step 1 has one. All other features of steps 1 .. t and all other targets, of the whole batch, are
    negatives. A query's loss is the mean over its positive views f+ of - log(exp(sim(q, f+) / tau) / sum over f of
    exp(sim(q, f) / tau)), where sim is the cosine and the sum is over views and negatives. Gradients flow into both
    sides of the comparison, but not into the targets.

    Use it together with `feature-regression`, because it compares only angles, not lengths. With a rollout of one step
    it compares only with the targets, which the paper advises against (Appendix C).

    A step is compared with all scored entries up to it, so time and memory grow with the square of their number. Masked
    entries are dropped first (one host sync).

    Args:
        temperature: tau (CORAL, Appendix A: 0.07).
    """

    rowwise = False
    """False: rows of a batch are compared with each other."""

    def __init__(self, *, temperature: float = 0.07) -> None:
        if not temperature > 0:
            raise InputError(f"csra: temperature must be above 0, not {temperature}")
        self.temperature = temperature

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the mean over scored predictions, a scalar; 0 if there are none."""
        if student.features is None:
            raise CompositionError("the loss 'csra' needs a drafter that predicts features, such as eagle")
        with torch.autocast(student.features.device.type, enabled=False):
            return self._total(student, student.features, teacher) / student.mask.sum().clamp(min=1)

    def _total(self, student: Student, features: Tensor, teacher: Teacher) -> Tensor:
        """Returns the sum over scored predictions, a scalar."""
        row, place = student.mask.nonzero(as_tuple=True)
        order = student.level[place].argsort(stable=True)  # step after step
        row, place = row[order], place[order]  # [P]
        spot = row * teacher.mask.shape[1] + student.position[row, place]  # [P] index into the batch's texts
        truth = teacher.features[student.tap].flatten(0, 1)  # [B L, D]
        imitated = torch.zeros_like(teacher.mask).flatten()
        imitated[spot] = True
        targets = _directions(truth[imitated])  # [T, D]
        predicted = _directions(features[row, place]).to(targets.dtype)  # [P, D]
        views = torch.cat([targets, predicted])  # [T + P, D]

        mine = torch.zeros_like(truth, dtype=views.dtype)  # [B L, D] running sum of each position's views
        mine[imitated] = targets
        seen = imitated.to(views.dtype)  # [B L] number of these views
        total, end = views.new_zeros(()), len(targets)
        for count in student.level[place].bincount().tolist()[1:]:
            start, end = end, end + count
            queries, positions = views[start:end], spot[start - len(targets) : end - len(targets)]
            alike = queries @ views[:end].T / self.temperature  # [n, T + n + all earlier]
            alike.diagonal(start).fill_(-torch.inf)  # a query is not compared with itself
            found = (queries * mine[positions]).sum(1) / seen[positions] / self.temperature
            total = total + (alike.logsumexp(1) - found).sum()
            mine = mine.index_add(0, positions, queries)
            seen = seen.index_add(0, positions, seen.new_ones(count))
        return total


def _directions(features: Tensor) -> Tensor:
    """Normalises features to length 1, in float32 or wider: [.., D] -> [.., D]."""
    return normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)
