"""Results of a sweep that never ran: acceptances drawn from a law that is known."""

from __future__ import annotations

import numpy as np

from specframe_scaling.points import Point, Results, Speed

TOKENS = (50_000, 120_000, 300_000, 750_000, 1_900_000, 5_000_000)
SIZES = {(1, 128): 295_000, (1, 512): 516_000, (3, 128): 737_000, (3, 512): 1_400_000}
SLOPES = (0.5, 0.3)
"""Of log10(tokens) and log10(parameters)."""
STARTS = (-0.2, -0.4, -0.7)
"""Logits of each depth at a million tokens and parameters."""


def logits(tokens: float, parameters: float) -> np.ndarray:
    """The planted logits by depth."""
    b, c = SLOPES
    return np.array(STARTS) + b * (np.log10(tokens) - 6) + c * (np.log10(parameters) - 6)


def tau(tokens: float, parameters: float) -> float:
    """The planted tau."""
    return float(1 + (1 / (1 + np.exp(-logits(tokens, parameters)))).cumprod().sum())


def results(
    seed: int, prompts: int = 24, cycles: int = 60, seeds: int = 2, spread: float = 0.25, shift: float = 0.04
) -> Results:
    """Points of the planted law: prompts that are easier or harder by `spread`, trainings apart by `shift`."""
    dice = np.random.default_rng(seed)
    ease = dice.normal(0, spread, prompts)
    points = []
    for size, parameters in SIZES.items():
        for number in range(seeds):
            apart = dice.normal(0, shift)
            for tokens in TOKENS:
                alpha = 1 / (1 + np.exp(-(logits(tokens, parameters)[None] + ease[:, None] + apart)))
                left = np.full(prompts, cycles)
                reached = np.zeros((prompts, len(STARTS)))
                for depth in range(len(STARTS)):
                    left = dice.binomial(left, alpha[:, depth])
                    reached[:, depth] = left
                points.append(
                    Point(
                        target="planted",
                        data=f"texts {number}",
                        device="cpu",
                        tokens=tokens,
                        layers=size[0],
                        width=size[1],
                        parameters=parameters,
                        seed=number,
                        seconds=tokens / (8e8 / parameters),
                        cycles=[float(cycles)] * prompts,
                        reached=reached.tolist(),
                    )
                )
    return Results(points, [speed(size, batch) for size in SIZES for batch in (1, 2, 4, 8, 16)])


def speed(size: tuple[int, int], batch: int) -> Speed:
    """Times of a machine on which ten nodes cost as much as one and half of a pass."""
    plain = 0.010 + 0.001 * batch
    target = 0.010 + 0.001 * batch * 10
    draft = 0.0005 * size[0] * (1 + 0.1 * batch)
    rate = 2.0 * batch / (target + 3 * draft)
    return Speed(*size, batch, [3.0, 3.0, 3.0], plain, target, draft, 0.0002, rate, 2.0)
