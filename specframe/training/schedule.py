"""Schedule of a training run, random seeds included, as a function of the step, so that no state is saved."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.training import RolloutMethods
from specframe.training.settings import Mixture, TrainSettings


def learning_rate(settings: TrainSettings, step: int, total: int) -> float:
    """The learning rate of step 0 .. total - 1: linear warm-up, then the decay of the schedule or cooldown to 0."""
    warmup = settings.warmup if settings.warmup >= 1 else math.ceil(settings.warmup * total)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    done = (step - warmup) / max(1.0, total - warmup)
    constant = 1 - progress(settings, step, total) if settings.cooldown is not None else 1.0
    factor = {"constant": constant, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return settings.lr * max(0.0, factor[settings.schedule])


def decaying(settings: TrainSettings, total: int) -> int:
    """Number of last steps over which the cooldown lowers the rate; 0 without one."""
    share: Any = settings.cooldown.get("share", 0.15) if settings.cooldown is not None else 0.0
    return math.ceil(share * total)


def progress(settings: TrainSettings, step: int, total: int) -> float:
    """The completed share of a run at a step, from 0 to below 1.

    With a cooldown it is the completed share of the decay, so nothing before the decay depends on the end of the run.
    """
    if settings.cooldown is None:
        return step / total
    return max(0.0, 1 - (total - step) / decaying(settings, total))


WINDOW = 32
"""Number of steps whose texts are sorted by length together."""


class Order:
    """Order of the training texts: an endless stream of epochs, each a different permutation seeded by `seed`.

    Each step takes `size` texts from the stream, so an epoch may end inside a step, no text is left out, and the
    texts of a step can be computed without earlier steps. The texts of a step have similar length, to reduce padding:
    a permutation is sorted by length within windows of `WINDOW` steps, and the steps of a window are shuffled
    afterwards.
    """

    def __init__(self, lengths: Tensor, size: int, seed: int) -> None:
        self.texts = texts = len(lengths)
        self.lengths, self.size = lengths, size

        def order(epoch: int) -> Tensor:
            return _arranged(_permutation(texts, seed, epoch), lengths, size, -epoch * texts % size, mix(seed, epoch))

        self._epoch = lru_cache(maxsize=4)(order)

    def steps(self, epochs: int) -> int:
        """The number of steps that see every text `epochs` times."""
        return math.ceil(epochs * self.texts / self.size)

    def reach(self, marks: Sequence[int]) -> list[int]:
        """The steps after which the tokens seen first reach each of these ascending numbers."""
        found: list[int] = []
        step = seen = 0
        for mark in marks:
            while seen < mark:
                seen += int(self.lengths[self.rows(step)].sum())
                step += 1
            found.append(step)
        return found

    def rows(self, step: int) -> Tensor:
        """The texts of a step: [size] int64 on the host."""
        return self.between(step * self.size, (step + 1) * self.size)

    def between(self, first: int, last: int) -> Tensor:
        """The texts `first` to `last` - 1 of the stream: int64 on the host."""
        stream = torch.arange(first, last)
        epoch, place = stream // self.texts, stream % self.texts
        chosen = torch.empty_like(stream)
        for number in torch.unique(epoch).tolist():
            inside = epoch == number
            chosen[inside] = self._epoch(number)[place[inside]]
        return chosen


@dataclass(frozen=True)
class End:
    """An end of a run, with the settings of a run that has only this end."""

    settings: TrainSettings
    step: int
    """Number of steps of the run with this end."""

    @property
    def parting(self) -> int:
        """Number of steps shared with the main run: all steps before the learning rate decays."""
        return self.step - decaying(self.settings, self.step)


def ends_of(settings: TrainSettings, order: Order) -> list[End]:
    """The ends of a run in the order of their steps; the last one is the main run's.

    Raises InputError for marks without a step between them or without a step at the constant rate, and
    CompositionError for a rollout that depends on the length of the run or on earlier steps.
    """
    cooldown: dict[str, Any] = settings.cooldown or {}
    marks = sorted(cooldown.get("at", []))
    if not marks:
        return [End(settings, settings.steps or order.steps(settings.epochs))]
    rollout = RolloutMethods.of(settings.rollout)
    if len(marks) > 1 and (rollout.teaches or rollout.begin is not None):
        raise CompositionError(
            f"train.cooldown.at: the rollout {type(settings.rollout).__name__} depends on the steps before, so that "
            "branches of one run would not be runs of their own: give one mark"
        )
    steps = order.reach(marks)
    if same := [mark for mark, (one, two) in zip(marks, pairwise(steps), strict=False) if one == two]:
        raise InputError(f"train.cooldown.at: no step ends between {same[0]:,} tokens and the next mark")
    ends = [End(_ending(settings, mark, mark == marks[-1]), step) for mark, step in zip(marks, steps, strict=True)]
    if ends[0].parting < max(1, settings.warmup):
        raise InputError(
            f"train.cooldown.at: a run of {marks[0]:,} tokens has {ends[0].step} steps, too few to warm up and decay"
        )
    return ends


def _ending(settings: TrainSettings, mark: int, last: bool) -> TrainSettings:
    """The settings of a run that ends after `mark` tokens."""
    out = settings.out if last else settings.out / f"tokens-{mark}"
    return replace(settings, out=out, cooldown={**(settings.cooldown or {}), "at": [mark]})


class MixedOrder:
    """Order of the training texts with a mixture, the last `mixed` texts, whose share of a step changes during the run.

    Both kinds have their own order. The number of a step's mixed texts depends only on the step: it follows from the
    rounded sum of the shares so far.
    """

    def __init__(self, lengths: Tensor, mixed: int, size: int, seed: int, mixture: Mixture, total: int) -> None:
        self.own = len(lengths) - mixed
        self.size, self.mixture, self.total = size, mixture, total
        self._texts = Order(lengths[: self.own], size, seed)
        self._mixed = Order(lengths[self.own :], size, mix(seed, 1))

    def rows(self, step: int) -> Tensor:
        """The texts of a step: [size] int64 on the host."""
        first, last = self._taken(step), self._taken(step + 1)
        own = self._texts.between(step * self.size - first, (step + 1) * self.size - last)
        return torch.cat([own, self._mixed.between(first, last) + self.own])

    def _taken(self, steps: int) -> int:
        """The number of mixed texts in the first `steps` steps."""
        begin, end = self.mixture.begin, self.mixture.end
        slope = (end - begin) / max(1, self.total - 1)
        return math.floor(self.size * (begin * steps + slope * steps * (steps - 1) / 2) + 0.5)


def _arranged(texts: Tensor, lengths: Tensor, size: int, first: int, seed: int) -> Tensor:
    """The texts of an epoch [T], those of a step of similar length; `first` of them end the last epoch's last step."""
    generator = torch.Generator().manual_seed(seed)
    parts = [texts[:first]]
    for window in texts[first:].split(WINDOW * size):
        steps = window[lengths[window].argsort(stable=True)].split(size)
        whole = [step for step in steps if len(step) == size]
        parts += [whole[index] for index in torch.randperm(len(whole), generator=generator).tolist()]
        parts += [step for step in steps if len(step) < size]
    return torch.cat(parts)


def _permutation(texts: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(texts, generator=generator)


def mix(*numbers: int) -> int:
    """A well-mixed 63-bit seed from several numbers (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def seed_generators(number: int, step: int, rank: int, device: torch.device) -> None:
    """Seeds Python, numpy and torch for one step of one process.

    Random numbers of a step thus do not depend on earlier steps, and a resumed run continues exactly like an
    uninterrupted one without saved generator states.
    """
    mixed = mix(number, step, rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)
    torch.default_generator.manual_seed(mixed)  # torch.manual_seed takes milliseconds where CUDA is absent
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(mixed)


@contextmanager
def borrowed_generators(device: torch.device) -> Iterator[None]:
    """Restores the generators' states at the end of the with block."""
    python, numbers = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
