"""Tokens per second by number of rows: Scylla's logarithm up to a knee, and the machine's measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specframe_scaling.points import Array, Passes, Speed, name_of

PLACES = 200
"""Number of candidate places for the knee."""


@dataclass(frozen=True)
class Knee:
    """tokens a second = a + b log2(min(batch, knee)), Theorem 1.3 of Scylla up to the machine's saturation."""

    a: float
    b: float
    knee: float
    error: float
    """Mean relative error at the batches used in the fit."""

    @classmethod
    def fit(cls, batches: Sequence[int], speeds: Sequence[float]) -> Knee:
        """Fits line and knee by least squares."""
        x, y = np.log2(np.array(batches, dtype=float)), np.array(speeds, dtype=float)
        best: tuple[float, float, Array] | None = None
        for knee in np.linspace(x.min() + 1e-6, x.max(), PLACES) if len(x) > 1 else x:
            bent = np.minimum(x, knee)
            line = np.stack([np.ones_like(bent), bent], 1)
            solved = np.linalg.lstsq(line, y, rcond=None)[0]
            misfit = float(((line @ solved - y) ** 2).sum())
            if best is None or misfit < best[0] - 1e-12:
                best = misfit, float(knee), solved
        assert best is not None
        _, knee, (a, b) = best
        off = np.abs(a + b * np.minimum(x, knee) - y) / y
        return cls(float(a), float(b), float(2**knee), float(off.mean()))

    def rate(self, batch: float) -> float:
        """Returns the tokens per second at a batch."""
        return self.a + self.b * float(np.log2(min(batch, self.knee)))


def predict(passes: Passes, speed: Speed, rest: float) -> float:
    """Predicts the tokens per second from times of single passes and the rest of a cycle of one row.

    A drafter's pass grows with the rows as the target's does.
    """
    nodes = speed.batch * (1 + sum(speed.nodes))
    draft = passes.draft[name_of((speed.layers, speed.width))] * passes.cost(speed.batch) / passes.cost(1)
    return speed.batch * speed.tau / (passes.cost(nodes) + len(speed.nodes) * draft + rest)


def predictions(passes: Passes, speeds: Sequence[Speed]) -> list[float]:
    """Predicts the tokens per second of a size's batches, smallest first, whose rest of a cycle all batches share."""
    return [predict(passes, speed, speeds[0].other_seconds) for speed in speeds]


def cycle_seconds(speed: Speed, depth: int, passes: Passes | None = None) -> float:
    """Returns the seconds of a cycle whose drafts are cut below a depth.

    The target's time decreases with the nodes as its measured passes do; without these, it is interpolated between a
    pass without drafts and one over the whole draft.
    """
    whole, cut = sum(speed.nodes), sum(speed.nodes[:depth])
    if passes is None:
        rise = (speed.target_seconds - min(speed.plain_seconds, speed.target_seconds)) / max(whole, 1e-9)
        target = speed.target_seconds - rise * (whole - cut)
    else:
        target = speed.target_seconds * passes.cost(speed.batch * (1 + cut)) / passes.cost(speed.batch * (1 + whole))
    return target + depth * speed.draft_seconds + speed.other_seconds
