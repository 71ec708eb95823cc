"""Calibration of a drafter: per level, a power of its law that fits the target's tokens.

A drafter's probabilities are computed at temperature 1 and may be over- or underconfident. A tree policy that
adds them up needs the probability that a node is *accepted*. One number per level corrects for both: the power to
which the law is raised before it is renormalised, the temperature scaling of Guo et al. (2017). A power above 1
sharpens the law, as greedy decoding needs, which always takes the likeliest token; a power below 1 flattens the law
of an overconfident drafter. Siblings keep their order, and their probabilities sum to at most one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specframe.kernel.errors import InputError

GRID = tuple(2 ** (step / 4) for step in range(-12, 21))
"""The powers whose likelihood is measured: from 1/8 to 32."""


@dataclass(frozen=True)
class Calibration:
    """A power per level of the draft; the last one serves all deeper levels."""

    powers: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises InputError if there is no power, or one that is not positive."""
        if not self.powers or not all(0 < power < math.inf for power in self.powers):
            raise InputError("a calibration is a list of powers, one per level, all of them above 0")

    def power(self, level: int) -> float:
        """Returns the exponent applied to the law of a level, 0 for the first."""
        return self.powers[min(level, len(self.powers) - 1)]

    def sharpen(self, logits: Tensor, level: int) -> Tensor:
        """The logits [..., K, V] of K levels, from `level` on, multiplied by the powers of their levels."""
        rows = logits.unbind(-2)
        return torch.stack([row * self.power(level + offset) for offset, row in enumerate(rows)], -2)


def read_calibration(path: Path) -> Calibration:
    """The calibration in a JSON file of `specframe profile`. Raises InputError if there is none."""
    try:
        return Calibration(tuple(map(float, json.loads(path.read_text(encoding="utf-8"))["calibration"])))
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no calibration: measure one with `specframe profile --out {path}`") from error


class Fit:
    """Maximum-likelihood calibration from the target's tokens at nodes with drafter logits.

    The log-likelihood of a level is concave in its power. It is summed for the powers of `GRID` while decoding,
    so only these sums are stored; the maximum is taken from the parabola through the three best. A normal
    prior on the logarithm of the power, with standard deviation 1, decides if there are very few tokens.
    """

    def __init__(self) -> None:
        self.likelihood: list[Tensor] = []
        """Log-likelihood of every power of GRID, by level, [G] float64."""
        self.seen: list[int] = []
        """Number of tokens after the likelihood, by level."""

    def add(self, logits: Tensor, tokens: Tensor, level: int) -> None:
        """Counts the target's tokens [M] at nodes where the drafter's logits were [M, V].

        Tokens to which the drafter gives no probability (a trimmed vocabulary) carry no information and are skipped.
        """
        missing = level + 1 - len(self.seen)
        self.likelihood.extend(torch.zeros(len(GRID), dtype=torch.float64) for _ in range(missing))
        self.seen.extend([0] * missing)
        gap = logits.float() - logits.float().amax(-1, keepdim=True)  # [M, V]
        own = gap.gather(1, tokens[:, None])[:, 0]  # [M]
        possible = own > -torch.inf
        gap, own = gap[possible], own[possible]
        self.seen[level] += len(own)
        self.likelihood[level] += torch.tensor(
            [float((power * own - (power * gap).logsumexp(-1)).double().sum()) for power in GRID], dtype=torch.float64
        )

    @property
    def calibration(self) -> Calibration:
        """The likeliest powers; 1 where nothing was seen."""
        return Calibration(tuple(map(_top, self.likelihood)) or (1.0,))


def _top(likelihood: Tensor) -> float:
    """The power at which a log-likelihood on GRID, and the prior, are largest."""
    steps = torch.tensor(GRID, dtype=torch.float64).log()  # evenly spaced
    height = likelihood - steps**2 / 2
    highest = int(height.argmax())
    best = min(max(highest, 1), len(GRID) - 2)
    left, top, right = height[best - 1 : best + 2].tolist()
    bend = left - 2 * top + right
    offset = (left - right) / (2 * bend) if bend < 0 else highest - best
    return math.exp(float(steps[best]) + max(-1.0, min(1.0, offset)) * float(steps[1] - steps[0]))
