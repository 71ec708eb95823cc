"""Distances between the steps of a training run, the measure of CORAL's Appendix D."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize

from specframe import CompositionError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Student


@torch.no_grad()
def step_distances(student: Student, temperature: float = 0.07) -> Tensor:
    """Returns the InfoNCE between the features of every two steps, [steps, steps] (CORAL, Appendix D, Table 6).

    Entry [t, s], s < t, is the mean of - log(exp(sim(q, f+) / tau) / sum over f of exp(sim(q, f) / tau)), where q is
    the prediction of step t + 1 at a position, f+ that of step s + 1 at this position, and f runs over all predictions
    of step s + 1 at the batch's positions that all steps have. Other entries are 0. Small values mean that the steps
    agree and that positions are distinct. Raises CompositionError for a drafter without features.
    """
    if student.features is None:
        raise CompositionError("distances between steps need a drafter that predicts features, such as eagle")
    row, place = student.mask.nonzero(as_tuple=True)
    spot = row * (int(student.position.max()) + 1) + student.position[row, place]  # [P]
    step = student.level[place] - 1  # [P]
    steps = int(student.level.max())
    distances = torch.zeros(steps, steps, dtype=torch.float64)
    spots, times = spot.unique(return_counts=True)
    shared = spots[times == steps]  # [n]
    if not len(shared):
        return distances
    chosen = torch.isin(spot, shared)
    order = (step * (int(spot.max()) + 1) + spot)[chosen].argsort()  # sorted by step, with equal positions in each
    views = normalize(student.features[row, place][chosen][order].double(), dim=-1).unflatten(0, (steps, -1))
    for later in range(1, steps):
        for earlier in range(later):
            alike = views[later] @ views[earlier].T / temperature  # [n, n]
            distances[later, earlier] = (alike.logsumexp(1) - alike.diagonal()).mean()
    return distances
