"""Schedule of a training run, as pure functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from specframe.training.settings import TrainSettings


def learning_rate(settings: TrainSettings, step: int, total: int) -> float:
    """The learning rate of step 0 .. total - 1: linear warm-up, then the schedule's way down to 0."""
    warmup = settings.warmup if settings.warmup >= 1 else math.ceil(settings.warmup * total)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    done = (step - warmup) / max(1.0, total - warmup)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return settings.lr * max(0.0, factor[settings.schedule])


WINDOW = 32
"""Steps whose texts are sorted by length together."""


class Order:
    """Order of the texts that steps see: epoch after epoch, each a permutation of its own, seeded by `seed`.

    Steps take `size` texts at a time from that endless stream, so an epoch may end inside a step, no text is left out,
    and any step's texts are known without those before it. A step's texts are of similar length, so that little
    computation is spent on padding: a permutation is sorted by length within windows of `WINDOW` steps, and the steps
    of a window are shuffled again.
    """

    def __init__(self, lengths: Tensor, size: int, seed: int) -> None:
        self.texts = texts = len(lengths)
        self.size = size

        def order(epoch: int) -> Tensor:
            return _arranged(_permutation(texts, seed, epoch), lengths, size, -epoch * texts % size, mix(seed, epoch))

        self._epoch = lru_cache(maxsize=4)(order)

    def steps(self, epochs: int) -> int:
        """The number of steps that see every text `epochs` times."""
        return math.ceil(epochs * self.texts / self.size)

    def at(self, step: int) -> Tensor:
        """The texts of a step: [size] int64 on the host."""
        stream = torch.arange(step * self.size, (step + 1) * self.size)
        epoch, place = stream // self.texts, stream % self.texts
        chosen = torch.empty_like(stream)
        for number in torch.unique(epoch).tolist():
            inside = epoch == number
            chosen[inside] = self._epoch(number)[place[inside]]
        return chosen


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
    """One seed out of several numbers, 63 bits, well spread (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
