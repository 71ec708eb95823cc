"""A Gaussian process over sets of parts: the expected scores of untried sets."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

NOISE = 0.1
"""Variance of a score's noise, relative to the variance of the scores."""


def expect(tried: Tensor, scores: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and deviation of the scores of other sets [C, n], given scores [m] of tried sets [m, n].

    Sets are rows of zeros and ones. The kernel is Matern's with 5/2; its length scale is the distance of two sets which
    differ in a quarter of the parts.
    """
    middle, spread = scores.mean(), scores.std(unbiased=False).clamp(min=1e-6)
    known = kernel(tried, tried) + NOISE * torch.eye(len(tried), dtype=scores.dtype)
    factor = torch.linalg.cholesky(known)
    across = kernel(tried, others)  # [m, C]
    weights = torch.cholesky_solve(((scores - middle) / spread)[:, None], factor)  # [m, 1]
    half = torch.linalg.solve_triangular(factor, across, upper=False)
    variance = (1 - half.square().sum(0)).clamp(min=0)
    return middle + spread * (across.T @ weights)[:, 0], spread * variance.sqrt()


def kernel(first: Tensor, second: Tensor) -> Tensor:
    """Returns the similarity of the scores of two lists of sets [m, n] and [k, n]: [m, k], 1 for equal sets."""
    differing = first.sum(1)[:, None] + second.sum(1) - 2 * first @ second.T
    distance = sqrt(5) * (differing.clamp(min=0) / (first.shape[1] / 4)).sqrt()
    return (1 + distance + distance.square() / 3) * (-distance).exp()
