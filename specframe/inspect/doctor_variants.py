"""Alternative ways in which a drafter may have been trained to read its target, and how well each fits its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.shifted import predict_texts
from specframe.kernel.training import FeatureDrafter
from specframe.kernel.types import Teacher
from specframe.neural.drafter import NeuralDrafter
from specframe.neural.network import FeatureNetwork
from specframe.training.validation import Guesses

DEPTHS = 3
"""Number of draft levels that are compared for a drafter that feeds its predictions back."""
BETTER = 0.05
ERRORS = 3
"""Smallest advantage of another reading that counts, in standard errors of the difference in agreement."""
LAYERS = "correct the layer numbers in the checkpoint or the recipe"


@dataclass(frozen=True)
class TargetReading:
    """A way to read the target's features, and how often the drafter's first choice is then the target's."""

    name: str
    taps: tuple[str, ...]
    remedy: str = ""
    """Remedy if this reading is the right one."""
    agreement: float = 0.0
    """Share of levels below a position that a chain along the text predicts correctly before its first mistake."""
    depths: tuple[float, ...] = ()
    """Share of correct first choices at each depth below a position, whether or not the choices above were correct."""
    error: float = 0.0
    """Standard error of the difference in agreement to the drafter's own reading, over the same positions."""


@dataclass(frozen=True)
class Attempt:
    """A reading, and a drafter that uses it."""

    reading: TargetReading
    drafter: FeatureDrafter
    late: bool = False
    """True if a feature is paired with the token at its own position instead of the next one."""


def compare(tried: Sequence[Attempt], teachers: Sequence[Teacher]) -> list[TargetReading]:
    """Measures the readings and returns them, the drafter's own first; empty if the texts are too short."""
    measured: list[TargetReading] = []
    own: Tensor | None = None
    for attempt in tried:
        predicted, right = _count(attempt, teachers)  # [n, depths] each
        asked = predicted.sum(1) > 0
        score = right[asked].cumprod(1).sum(1) / predicted[asked].sum(1)
        if not len(score):
            return []
        own = score if own is None else own
        error = float((score - own).var(correction=0) / len(score)) ** 0.5
        shares = tuple((right.sum(0) / predicted.sum(0)).tolist())
        measured.append(replace(attempt.reading, agreement=float(score.mean()), depths=shares, error=error))
    return measured


def better(readings: Sequence[TargetReading]) -> list[TargetReading]:
    """Returns the readings that fit better than the drafter's own, which is first: the best and those near it."""
    own = readings[0].agreement if readings else 1.0
    fits = [each for each in readings[1:] if each.agreement > own + max(BETTER, ERRORS * each.error)]
    best = max((each.agreement for each in fits), default=0.0)
    return sorted((each for each in fits if each.agreement > best - BETTER), key=lambda each: -each.agreement)


def attempts(drafter: FeatureDrafter, layers: int | None) -> Iterator[Attempt]:
    """Yields the drafter as it is, then variants that read a target of `layers` layers differently."""
    taps = drafter.spec.taps
    yield Attempt(TargetReading("as it is", taps), drafter)
    if isinstance(drafter, NeuralDrafter):
        network = drafter.network
        if isinstance(network, FeatureNetwork) and type(network).unroll is FeatureNetwork.unroll:
            remedy = "swap the two halves of its first map's input in the checkpoint"
            yield Attempt(TargetReading("embedding and feature swapped", taps, remedy), _swapped(drafter))
        for entries, twin in drafter.alternatives().items():
            yield Attempt(TargetReading(entries, taps, "correct these entries of its config.json"), twin)
    remedy = "train it on pairs of a feature and the token after it, or shift its inputs where it was exported"
    yield Attempt(TargetReading("each feature with its own token", taps, remedy), drafter, late=True)
    for name, moved in _moved(taps, layers):
        other: FeatureDrafter = copy.copy(drafter)
        other.spec = replace(drafter.spec, taps=moved)
        yield Attempt(TargetReading(name, moved, f"its features are {', '.join(moved)}: {LAYERS}"), other)


def _moved(taps: tuple[str, ...], layers: int | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields alternative taps of a target of `layers` layers, each with a description of the difference."""
    if len(taps) > 1:
        yield "features in reverse order", taps[::-1]
    if layers is None or not taps:
        return
    final = f"layer.{layers - 1}"
    if "last" in taps:
        yield "before the final norm", tuple(final if tap == "last" else tap for tap in taps)
    elif final in taps:
        yield "after the final norm", tuple("last" if tap == final else tap for tap in taps)
    numbers = [int(tap.partition(".")[2]) if tap != "last" else layers - 1 for tap in taps]
    for step in (-2, -1, 1, 2):
        if min(numbers) + step >= 0 and max(numbers) + step < layers:
            yield f"layers {'+' if step > 0 else '-'}{abs(step)}", tuple(f"layer.{each + step}" for each in numbers)


def _swapped(drafter: NeuralDrafter[Any]) -> NeuralDrafter[Any]:
    """Returns the drafter with the two inputs of its network exchanged."""

    def swap(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pairs, *rest = given
        return (torch.cat(pairs.chunk(2, -1)[::-1], -1), *rest)

    twin = drafter.twin()
    twin.network.register_forward_pre_hook(swap)
    return twin


@torch.no_grad()
def _count(attempt: Attempt, teachers: Sequence[Teacher]) -> tuple[Tensor, Tensor]:
    """Counts the predictions from every position, and those that are the target's first choice: [n, depths] each."""
    drafter, found = attempt.drafter, []
    feeds = drafter.spec.feeds and drafter.spec.side_by_side and drafter.block == drafter.levels == 1
    for teacher in teachers:
        given = teacher
        if attempt.late:
            given = replace(teacher, tokens=torch.cat([teacher.tokens[:, :1], teacher.tokens[:, :-1]], 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # texts in blocks are cropped at the same positions for every reading
            made = (
                MultiStep(steps=DEPTHS, noise=0.0)(drafter, given, 1.0)
                if feeds
                else predict_texts(drafter, given, 0.0, "")
            )
        guesses = Guesses.of(made, teacher)
        found.append(torch.stack([guesses.predicted, guesses.right]).flatten(1, 2).double())  # [2, L, depths]
    predicted, right = torch.cat(found, 1) if found else torch.zeros(2, 0, 1)
    return predicted, right
