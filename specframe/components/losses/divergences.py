"""Divergences of the drafter's distribution q from the target's p that differ from cross-entropy.

Speculative sampling accepts a token drawn from q with probability alpha = sum of min(p, q) = 1 - TV(p, q). KL(p || q),
which cross-entropy minimises, only bounds alpha from below; the measures in this module are alpha itself or closer to
it (LK losses, arXiv 2602.23881; DistillSpec, arXiv 2310.08461).

Both distributions are at temperature 1. For a drafter with a support, the target's mass outside it counts as rejected,
as q is 0 there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe.components.losses.scored import log_target, mean
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Student, Teacher

LEAST = 1e-5
"""The smallest acceptance whose logarithm is taken."""


class Divergence:
    """A divergence of two distributions as a loss, with lower weights on deeper levels.

    Args:
        decay: the weight of a level relative to the level above it (DFlash: exp(-1 / gamma)).
    """

    def __init__(self, *, decay: float = 1.0) -> None:
        if not 0 < decay <= 1:
            raise InputError(f"a loss's decay must be above 0 and at most 1, not {decay}")
        self.decay = decay

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """The mean over masked predictions, a scalar."""
        return mean(*self.values(student, teacher))

    def values(self, student: Student, teacher: Teacher) -> tuple[Tensor, Tensor]:
        """The value of each prediction, [B, M], and the mask of predictions to average, [B, M] bool."""
        far = self.measure(log_target(student, teacher), student.log_law)
        if self.decay < 1:
            far = far * self.decay ** (student.level - 1).to(far.dtype)
        return far, student.mask

    def measure(self, p: Tensor, q: Tensor) -> Tensor:
        """Returns the divergence of q from p, given their logarithms [.., v]: [..]."""
        raise NotImplementedError


class TotalVariation(Divergence):
    """1 - sum of min(p, q): the share of drafted tokens that speculative sampling rejects (TV; DistillSpec, LK losses).

    Its gradient vanishes where the distributions hardly overlap, so it does not suit untrained drafters: start with
    another loss, or combine it (`lk-hybrid`; DSpark: 0.1 cross-entropy plus 1.8 of this, which is 0.9 L1 distance).

    Args:
        decay: the weight of a level relative to the level above it.
    """

    def measure(self, p: Tensor, q: Tensor) -> Tensor:
        """1 - alpha."""
        return 1 - overlap(p, q)


class NegativeLogAcceptance(Divergence):
    """- log of sum of min(p, q), whose gradient is TV's divided by the acceptance (LK losses, arXiv 2602.23881).

    The gradient therefore does not vanish for small acceptance. For a one-hot p the loss is cross-entropy. An
    acceptance below 1e-5 is clamped to that value and has no gradient.

    Args:
        decay: the weight of a level relative to the level above it.
    """

    def measure(self, p: Tensor, q: Tensor) -> Tensor:
        """- log alpha."""
        return -overlap(p, q).clamp(min=LEAST).log()


class LKHybrid(Divergence):
    """w KL(p || q) + (1 - w) TV(p, q), where w = exp(-eta alpha): KL at first, TV once they overlap (arXiv 2602.23881).

    No gradient flows through w, which uses the acceptance alpha of each prediction.

    Args:
        eta: how quickly the weight moves to TV (published: 3).
        decay: the weight of a level relative to the level above it.
    """

    detaches = True

    def __init__(self, *, eta: float = 3.0, decay: float = 1.0) -> None:
        if not eta >= 0:
            raise InputError(f"lk-hybrid: eta must not be negative, not {eta}")
        super().__init__(decay=decay)
        self.eta = eta

    def measure(self, p: Tensor, q: Tensor) -> Tensor:
        """The mixture."""
        alpha = overlap(p, q)
        weight = (-self.eta * alpha.detach()).exp()
        return weight * _relative(p, q) + (1 - weight) * (1 - alpha)


class ReverseKL(Divergence):
    """KL(q || p), which is mode-seeking: q need not cover all tokens of p (DistillSpec).

    For a drafter with a support, p is conditioned on the support, since q is 0 elsewhere.

    Args:
        decay: the weight of a level relative to the level above it.
    """

    def measure(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(q || p)."""
        return _relative(q, p - p.logsumexp(-1, keepdim=True))


class JensenShannon(Divergence):
    """beta KL(p || m) + (1 - beta) KL(q || m), where m = beta p + (1 - beta) q (DistillSpec; Lin 1991).

    Symmetric for `beta` 0.5, and at most log 2. Tokens outside a support contribute with their p and q = 0.

    Args:
        beta: the share of p.
        decay: the weight of a level relative to the level above it.
    """

    def __init__(self, *, beta: float = 0.5, decay: float = 1.0) -> None:
        if not 0 < beta < 1:
            raise InputError(f"jsd: beta must lie between 0 and 1, not {beta}")
        super().__init__(decay=decay)
        self.beta = beta

    def measure(self, p: Tensor, q: Tensor) -> Tensor:
        """The divergence."""
        beta = torch.tensor(self.beta, dtype=p.dtype, device=p.device)
        middle = torch.logaddexp(p + beta.log(), q + (1 - beta).log())
        outside = (1 - p.exp().sum(-1)).clamp(min=0)  # the target's mass where q is 0 and m = beta p
        return beta * (_relative(p, middle) - outside * beta.log()) + (1 - beta) * _relative(q, middle)


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """The acceptance, sum of min(p, q), given their logarithms [.., v]: [..]."""
    return torch.minimum(p, q).exp().sum(-1)


def _relative(p: Tensor, q: Tensor) -> Tensor:
    """The sum of p log(p / q), given their logarithms [.., v]: [..]."""
    return (p.exp() * (p - q)).sum(-1)
