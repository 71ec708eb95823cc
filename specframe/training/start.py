"""Initialisation of a drafter: fits the layer that fuses token and feature to the target's next feature.

A random layer needs hundreds of steps to learn the result of a linear regression: the mean feature, the weight of the
last feature, and the contribution of a token. The normal equations cost one pass over a few texts and one system of
2 D + 1 unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.training import Trainable
from specframe.kernel.types import Teacher
from specframe.training.teaching import Teaching
from specframe.training.texts import Texts

RIDGE = 1e-3
"""Ridge added to the diagonal of the normal equations, relative to it."""


def fit(drafter: Trainable, target: NeuralTarget, texts: Texts, teaching: Teaching, count: int) -> float:
    """Fits the fusion layer to `count` texts; returns the share of the features' variance that it explains there.

    The layer maps (embedding of token i + 1, feature i) to feature i + 1. The residual branches after it start at
    zero, so that the drafter initially predicts the layer's output. Raises CompositionError for a drafter without
    such a layer, InputError if the texts have too few positions for the fit.

    A drafter (EAGLE's family) provides the layer as `fusion`, [embedding, feature] of 2 D numbers -> D, or None; and
    as `branches` the last linear map of each branch added to its output. A drafter with a method `fit` (EAGLE-3)
    fits itself to the teachers and returns the explained share.
    """
    own: Callable[[Iterable[Teacher]], float] | None = getattr(drafter, "fit", None)
    if own is not None:
        return own(teaching(torch.tensor([row])) for row in range(min(count, len(texts))))
    fusion: nn.Linear | None = getattr(drafter, "fusion", None)
    branches: list[nn.Linear] = getattr(drafter, "branches", [])
    if fusion is None:
        raise CompositionError(
            f"train.fit fits the map that fuses token and feature, as EAGLE's drafter has it, and "
            f"{type(drafter).__name__} has none; leave it out"
        )
    size = fusion.in_features + 1
    squares = torch.zeros(size, size, dtype=torch.float64, device=target.device)
    products = torch.zeros(size, fusion.out_features, dtype=torch.float64, device=target.device)
    wanted_squares = torch.zeros(fusion.out_features, dtype=torch.float64, device=target.device)
    for row in range(min(count, len(texts))):
        given, wanted = _pairs(target, teaching, row)
        squares += given.T @ given
        products += given.T @ wanted
        wanted_squares += wanted.square().sum(0)
    n = float(squares[-1, -1])
    if n < size:
        raise InputError(
            f"train.fit: {min(count, len(texts))} texts have {n:.0f} positions that count, fewer than the {size} "
            "numbers to be fitted; raise it, or leave it out"
        )
    diagonal = squares.diagonal()
    solution = torch.linalg.solve(squares + torch.diag(RIDGE * diagonal + RIDGE * RIDGE * diagonal.mean()), products)
    with torch.no_grad():
        fusion.weight.copy_(solution[:-1].T)
        if fusion.bias is not None:
            fusion.bias.copy_(solution[-1])
        for branch in branches:
            branch.weight.zero_()
    variance = (wanted_squares - products[-1].square() / n).sum()
    left = (wanted_squares - 2 * (solution * products).sum(0) + (solution * (squares @ solution)).sum(0)).sum()
    return float(1 - left / variance)


@torch.no_grad()
def _pairs(target: NeuralTarget, teaching: Teaching, row: int) -> tuple[Tensor, Tensor]:
    """A text's (embedding, feature, 1) and the next features, at unmasked positions: [n, 2 D + 1], [n, D]."""
    teacher = teaching(torch.tensor([row]))
    features, scored = teacher.features["last"][0].double(), teacher.mask[0, 1:]
    embedded = target.embed(teacher.tokens[0, 1:]).double()
    ones = features.new_ones(len(embedded), 1)
    return torch.cat([embedded, features[:-1], ones], -1)[scored], features[1:][scored]
