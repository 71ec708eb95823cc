"""LayerSkip's schedules: dropout probabilities of layers, exits enabled in a step, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Curriculum = Literal["rotational", "gradual", "all"]


def chances(layers: int, largest: float, progress: float = 1.0) -> list[float]:
    """Returns the probability of dropping each layer for a text: D(l) S(t) p_max (LayerSkip, Section 4.1).

    D(l) = e^(l ln 2 / (L - 1)) - 1 grows from 0 at the first layer to 1 at the last. S(t) = e^(t ln 2 / (T - 1)) - 1
    grows with `progress`, t / (T - 1), from 0 to 1; a model that is already trained has S = 1, the default.
    """
    growth = 2**progress - 1
    return [largest * growth * (2 ** (layer / max(1, layers - 1)) - 1) for layer in range(layers)]


def weights(exits: Sequence[int], layers: int, scale: float) -> list[float]:
    """Returns the weights e(l) of the exits enabled in a step, normalised (LayerSkip, Section 4.1).

    With l = exit - 1, counted from 0: scale (0 + 1 + .. + l), and for the last layer L - 1 + scale (0 + .. + L - 2).
    The exit after the first layer thus has weight 0.
    """
    sums = [scale * layer * (layer + 1) / 2 for layer in range(layers - 1)]
    sums.append(layers - 1 + scale * (layers - 2) * (layers - 1) / 2)
    chosen = [sums[exit - 1] for exit in exits]
    return [weight / sum(chosen) for weight in chosen]


def enabled(curriculum: Curriculum, layers: int, step: int, total: int, every: int) -> list[int]:
    """Returns the exits enabled in this step of `total`, as numbers of layers, ascending; the last layer's always is.

    rotational: every `every`-th exit, shifted by one layer per step, cyclically. gradual: from the last layer down, one
    more exit every T / (2 L) steps, so that all are enabled from the middle of the training on.
    """
    if curriculum == "rotational":
        found = {layer + 1 for layer in range(layers) if (layer - step) % every == 0}
    elif curriculum == "gradual":
        found = {layer + 1 for layer in range(layers) if 2 * layers * step >= total * (layers - layer)}
    else:
        found = set(range(1, layers + 1))
    return sorted(found | {layers})
