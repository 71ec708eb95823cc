"""CORAL's formulas, restated number by number."""

from __future__ import annotations

import math

from torch import Tensor

from specframe.plugin import Student, Teacher
from specframe_coral.router import RouterNetwork


def cosine(x: list[float], y: list[float]) -> float:
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return dot / math.sqrt(sum(a * a for a in x)) / math.sqrt(sum(b * b for b in y))


def csra(student: Student, teacher: Teacher, temperature: float) -> float:
    """Eq. 2 averaged over every step's predictions: views are the steps before and the target."""
    made = [  # (step, row, position, feature); the target's own is made in step 0
        (int(student.level[m]), b, int(student.position[b, m]), student.features[b, m].tolist())
        for b, m in student.mask.nonzero().tolist()
    ]
    spots = sorted({(b, position) for _, b, position, _ in made})
    targets = [(0, b, position, teacher.features["last"][b, position].tolist()) for b, position in spots]
    total = 0.0
    for query in made:
        step, *spot, feature = query
        known = [other for other in [*made, *targets] if other is not query and other[0] <= step]
        alike = [math.exp(cosine(feature, other[3]) / temperature) for other in known]
        views = [x for x, other in zip(alike, known, strict=True) if list(other[1:3]) == spot]
        assert len(views) == step, "t positive views in step t"
        total += sum(-math.log(view / sum(alike)) for view in views) / len(views)
    return total / len(made)


def softmax(row: list[float]) -> list[float]:
    exps = [math.exp(x) for x in row]
    return [x / sum(exps) for x in exps]


def divide(vocab: int, groups: int) -> list[list[int]]:
    """The groups' tokens: consecutive, as equal as can be."""
    return [list(range(n * vocab // groups, (n + 1) * vocab // groups)) for n in range(groups)]


def router_law(network: RouterNetwork, feature: list[float]) -> list[float]:
    """Eq. 7: softmax(W2 (silu(W1 h) + h))."""
    first, second = network.inner.weight.tolist(), network.outer.weight.tolist()
    through = [sum(w * h for w, h in zip(row, feature, strict=True)) for row in first]
    mixed = [x / (1 + math.exp(-x)) + h for x, h in zip(through, feature, strict=True)]
    return softmax([sum(w * x for w, x in zip(row, mixed, strict=True)) for row in second])


def routed_law(
    network: RouterNetwork, feature: Tensor, logits: Tensor, groups: list[list[int]], active: int
) -> list[float]:
    """Eq. 8 for the `active` likeliest groups, 0 elsewhere; logits [V] are the whole LM head's."""
    choice = router_law(network, feature.tolist())
    law = [0.0] * len(logits)
    for n in sorted(range(len(groups)), key=lambda n: -choice[n])[:active]:
        inside = softmax([float(logits[x]) for x in groups[n]])
        for token, share in zip(groups[n], inside, strict=True):
            law[token] = choice[n] * share
    return law
