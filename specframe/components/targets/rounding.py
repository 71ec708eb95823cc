"""Equality of logits but for rounding."""

from __future__ import annotations

import torch
from torch import Tensor

LIMITS = {8: 1e-6, 4: 1e-3}
"""Largest error of a logit, as a share of the largest logit, by the bytes of a number."""
LOOSE = 2e-1
"""Largest error of a logit below full precision, as a share of the largest logit."""
REROUTED = 0.2
"""Share of the logits that may be off below full precision, at least one: a router may pick another expert at a near
tie, and rounded activations may diverge on senseless texts."""


def limit_of(dtype: torch.dtype) -> float:
    """Returns the largest error of logits for a model of this dtype."""
    return LIMITS.get(dtype.itemsize, LOOSE)


def agree(found: Tensor, wanted: Tensor, limit: float | None = None) -> bool:
    """Returns whether logits [..., V] of one model, computed in two ways, are equal but for rounding.

    Without a `limit`, full precision is taken for float32, in which norms are computed at most.
    """
    if limit is None:
        limit = LIMITS[4] if wanted.dtype.itemsize >= 4 else LOOSE
    off = ~(differences(found, wanted) <= limit)  # NaN is off, too
    return int(off.sum()) <= (max(1, int(REROUTED * off.numel())) if limit == LOOSE else 0)


def differences(found: Tensor, wanted: Tensor) -> Tensor:
    """The largest difference in each logit vector, as a share of the largest logit of all: [...]."""
    return (found - wanted).abs().amax(-1) / wanted.abs().amax().clamp(min=1e-9)
