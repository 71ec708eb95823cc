"""Fitting of a head to labels by logistic regression; L2 and threshold are chosen by cross-validation over problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from specframe_judge.head import LinearHead, require_both
from specframe_judge.mining import Label

FOLDS = 5
PENALTIES = tuple(10.0**power for power in range(-3, 4))
"""Tried strengths of L2: factors of half the sum of squared weights, which is added to the sum of the losses."""
STEPS, TOLERANCE = 50, 1e-7
"""Maximum number of Newton steps, and the change of a weight below which the iteration ends."""
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3)
"""Shares of harmful tokens for which a threshold is reported."""


@dataclass(frozen=True)
class Operating:
    """A threshold, and the labels above it among those that were not used to fit the head."""

    harmful: float
    """Share of harmful tokens above it."""
    harmless: float
    """Share of harmless tokens above it."""
    answers: float
    """Share of the problems with a harmful token above it, whose answers may be lost."""
    threshold: float


@dataclass(frozen=True)
class Fitted:
    """A head, with its evaluation on problems that were not used to fit it."""

    head: LinearHead
    penalty: float
    area: float
    """Area under the ROC curve: the probability that a harmless token ranks above a harmful one."""
    surprise_area: float
    """Area under the ROC curve of the rule without training, which ranks by p."""
    points: tuple[Operating, ...]
    surprise_points: tuple[Operating, ...]
    """Operating points of the rule by -log p; the threshold is the negated limit in nats."""


def fit(mined: Sequence[tuple[int, Sequence[Label]]], seed: int = 0) -> Fitted:
    """Fits a head to labels by problem, given the problems' numbers.

    Each of five parts of the problems is scored by a head that was fitted to the others. The penalty with the least
    loss is chosen, and thresholds are quantiles of these scores. The final head is fitted to all labels. Raises
    WeightsError if all labels are of one kind.
    """
    flat = [(number, label) for number, labels in mined for label in labels]
    harmless = torch.tensor([label.harmless for _, label in flat], dtype=torch.float64)  # [L]
    require_both(int(harmless.sum()), int((1 - harmless).sum()))
    features = torch.stack([label.refusal.feature for _, label in flat]).double()  # [L, D]
    numbers = [number for number, _ in flat]
    fold = _folds(numbers, seed)  # [L]
    guesses = {penalty: _out_of_fold(features, harmless, fold, penalty) for penalty in PENALTIES}
    penalty = min(PENALTIES, key=lambda it: float(F.binary_cross_entropy_with_logits(guesses[it], harmless)))
    right = harmless.bool()
    judged = guesses[penalty].sigmoid()
    likely = -torch.tensor([label.refusal.surprise for _, label in flat], dtype=torch.float64)
    return Fitted(
        head=logistic_regression(features, harmless, penalty),
        penalty=penalty,
        area=area(judged, right),
        surprise_area=area(likely, right),
        points=tuple(operating(judged, right, share, numbers) for share in SHARES),
        surprise_points=tuple(operating(likely, right, share, numbers) for share in SHARES),
    )


def logistic_regression(features: Tensor, harmless: Tensor, penalty: float) -> LinearHead:
    """Returns the head of least loss by Newton's method, given features [L, D] and labels [L], in float64."""
    mean, scale = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
    inputs = torch.cat([(features - mean) / scale, torch.ones_like(harmless)[:, None]], 1)  # [L, D + 1]
    ridge = torch.full((inputs.shape[1],), penalty, dtype=torch.float64)
    ridge[-1] = 1e-9  # the bias is not penalised

    def loss(weight: Tensor) -> float:
        fitted = F.binary_cross_entropy_with_logits(inputs @ weight, harmless, reduction="sum")
        return float(fitted + (ridge * weight.square()).sum() / 2)

    weight = torch.zeros_like(ridge)
    for _ in range(STEPS):
        guess = (inputs @ weight).sigmoid()
        curvature = (inputs.T * (guess * (1 - guess))) @ inputs + ridge.diag()
        step = torch.linalg.solve(curvature, inputs.T @ (guess - harmless) + ridge * weight)
        while loss(weight - step) > loss(weight) and step.abs().max() > TOLERANCE:
            step = step / 2
        weight = weight - step
        if step.abs().max() < TOLERANCE:
            break
    head = LinearHead(features.shape[1])
    for name, value in (("mean", mean), ("scale", scale), ("weight", weight[:-1]), ("bias", weight[-1])):
        getattr(head, name).copy_(value)
    return head


def operating(scores: Tensor, right: Tensor, share: float, numbers: Sequence[int]) -> Operating:
    """Returns the threshold above which at most this share of the harmful tokens lies.

    Arguments are scores [L], labels [L] bool, and the problem of each label.
    """
    harmful = scores[~right].sort(descending=True).values
    threshold = float(harmful[min(int(share * len(harmful)), len(harmful) - 1)])
    passed = scores > threshold
    problems = torch.tensor(numbers)
    lost = len(problems[passed & ~right].unique()) / len(problems.unique())
    return Operating(float(passed[~right].double().mean()), float(passed[right].double().mean()), lost, threshold)


def area(scores: Tensor, right: Tensor) -> float:
    """Returns the probability that a true label has a higher score than a false one; ties count half."""
    signs = (scores[right][:, None] - scores[~right][None]).sign()
    return float((signs + 1).mean() / 2)


def _folds(numbers: Sequence[int], seed: int) -> Tensor:
    """Returns each label's part, [L]: labels of a problem are in one part, and parts have equally many problems."""
    order = sorted(set(numbers))
    Random(seed).shuffle(order)
    places = {number: place % FOLDS for place, number in enumerate(order)}
    return torch.tensor([places[number] for number in numbers])


def _out_of_fold(features: Tensor, harmless: Tensor, fold: Tensor, penalty: float) -> Tensor:
    """Returns the logits of every label under a head that was fitted to the other parts, [L]."""
    logits = torch.zeros_like(harmless)
    for part in fold.unique().tolist():
        held_out = fold == part
        if held_out.all():
            return logits
        head = logistic_regression(features[~held_out], harmless[~held_out], penalty).double()
        logits[held_out] = torch.logit(head(features[held_out]).double().clamp(1e-12, 1 - 1e-12))
    return logits
