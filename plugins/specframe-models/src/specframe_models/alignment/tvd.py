"""TVD++: the policy gradient of total variation, with an advantage instead of the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from specframe import CompositionError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Student, Teacher

LEAST = 1e-2
"""Lower bound of the rewards' standard deviation, by which advantages are divided."""


class TVDPlus:
    """Total variation, whose gradient is a policy gradient with a normalised advantage (TVD++, arXiv 2403.00858).

    The gradient of TV(p, q) is - E[r(x) grad log q(x)] over tokens x drawn from q, where the reward r is 1 if p(x) >=
    q(x) and otherwise 0. TVD++ replaces r by the advantage (r - mu) / sigma, with mean and deviation of the rewards
    over a batch's tokens. Here nothing is drawn: the expectation is the sum over the vocabulary, and mu and sigma are
    over all tokens that could be drawn. The value is TV(p, q), so that runs can be compared.

    In an exact expectation mu has no effect, because E[grad log q] is 0; TV's gradient divided by sigma remains. It is
    enlarged where the drafter is nearly always or nearly never rejected, by at most 100.

    Both distributions are at temperature 1. For a drafter with a support, the target's mass outside it is lost.

    Args:
        over: the tokens over which mu and sigma are computed: those of the batch, or of each position.
    """

    detaches = True

    def __init__(self, *, over: Literal["batch", "position"] = "batch") -> None:
        if over not in ("batch", "position"):
            raise InputError(f"tvd-plus: over must be batch or position, not {over}")
        self.over = over
        self.rowwise = over == "position"

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """Returns the mean of TV(p, q) over scored predictions, a scalar, with the gradient of TVD++."""
        p, q = target_law(student, teacher), student.log_law  # [B, M, v], logarithms
        far = 1 - torch.minimum(p, q).exp().sum(-1).detach()  # [B, M]
        surrogate = -(self.weights(p, q, student.mask) * q).sum(-1)  # [B, M]
        values = far + surrogate - surrogate.detach()
        return torch.where(student.mask, values, 0).sum() / student.mask.sum().clamp(min=1)

    @torch.no_grad()
    def weights(self, p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
        """Returns each token's weight in the gradient of log q, q times the advantage, given logarithms: [B, M, v]."""
        drawn, reward = q.exp(), (p >= q).to(q.dtype)
        mean = (drawn * reward).sum(-1, keepdim=True)  # [B, M, 1]
        if self.over == "batch":
            mean = torch.where(mask[..., None], mean, 0).sum() / mask.sum().clamp(min=1)
        deviation = (mean * (1 - mean)).clamp(min=0).sqrt()  # of a 0/1 reward
        return drawn * (reward - mean) / deviation.clamp(min=LEAST)


def target_law(student: Student, teacher: Teacher) -> Tensor:
    """Returns the target's log-probabilities in the student's columns, at the predictions' positions: [B, M, v].

    Raises CompositionError for a teacher of another support.
    """
    rows = torch.arange(len(student.position), device=student.position.device)[:, None]
    law = teacher.log_law[rows, student.position]
    if teacher.support is None:
        return law if student.support is None else law[..., student.support]
    if student.support is None or not torch.equal(teacher.support, student.support):
        raise CompositionError("tvd-plus: the teacher's support is not the drafter's: make one for this drafter")
    return law
