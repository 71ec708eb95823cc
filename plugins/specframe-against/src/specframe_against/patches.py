"""Replacement of known random functions by forking ones while foreign code is enumerated."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specframe import InputError
from specframe_against.exponential import Held, Race
from specframe_against.replay import BranchReplay
from specframe_against.uniform import HINT, LazyTensor

OWN = ("torch", "numpy", "random", "specframe", "specframe_against")
"""Packages whose own references to random functions are not replaced."""


class Forking:
    """Forking versions of torch's, random's and numpy's functions."""

    def __init__(self, replay: BranchReplay) -> None:
        self.replay = replay

    def rand(self, *size: Any, **options: Any) -> LazyTensor:
        """torch.rand, numpy.random.rand."""
        shape = options.get("size", size)
        if len(shape) == 1 and isinstance(shape[0], tuple | list | torch.Size):
            shape = shape[0]
        return LazyTensor.fresh(self.replay, shape)

    def rand_like(self, like: Tensor, **options: Any) -> LazyTensor:
        """torch.rand_like."""
        return LazyTensor.fresh(self.replay, like.shape)

    def random(self, size: Any = None) -> LazyTensor:
        """random.random, numpy.random.random."""
        return LazyTensor.fresh(self.replay, _shape(size))

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> LazyTensor:
        """random.uniform, numpy.random.uniform."""
        return self.random(size) * (high - low) + low

    def uniform_(self, like: Tensor, low: float = 0.0, high: float = 1.0, **options: Any) -> Tensor:
        """Tensor.uniform_: `like` stands for the numbers from now on."""
        return Held.fill(like, self.rand_like(like) * (high - low) + low)

    def exponential_(self, like: Tensor, lambd: float = 1.0, **options: Any) -> Tensor:
        """Tensor.exponential_: `like` stands for the numbers from now on."""
        return Held.fill(like, Race.fresh(self.replay, like.shape) / lambd)

    def exponential(self, scale: float = 1.0, size: Any = None) -> Race:
        """numpy.random.exponential."""
        return Race.fresh(self.replay, _shape(size)) * scale

    def expovariate(self, lambd: float = 1.0) -> Race:
        """random.expovariate."""
        return self.exponential(1 / lambd)

    def gumbel(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Race:
        """numpy.random.gumbel."""
        if scale != 1:
            raise InputError(f"the code draws Gumbel numbers of scale {scale}, which is no race; {HINT}")
        return -Race.fresh(self.replay, _shape(size)).log() + loc

    def default_rng(self, seed: Any = None) -> Generator:
        """numpy.random.default_rng."""
        return Generator(self)

    def multinomial(self, weights: Tensor, num_samples: int, replacement: bool = False, **options: Any) -> Tensor:
        """torch.multinomial, with the weights normalised as torch does."""
        rows = weights.detach().double().cpu().reshape(-1, weights.shape[-1])
        drawn = [self._draw(row.tolist(), num_samples, replacement) for row in rows]
        return torch.tensor(drawn).reshape(*weights.shape[:-1], num_samples)

    def bernoulli(self, p: Tensor, **options: Any) -> Tensor:
        """torch.bernoulli."""
        flat = p.detach().double().flatten().tolist()
        return torch.tensor([self.replay.choose([1 - x, x]) for x in flat], dtype=p.dtype).reshape(p.shape)

    def choices(self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        """random.choices."""
        if cum_weights is not None:
            weights = np.diff(np.asarray(cum_weights, dtype=float), prepend=0.0)
        law = np.ones(len(population)) if weights is None else np.asarray(weights, dtype=float)
        return [population[i] for i in self._draw(law.tolist(), k, True)]

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        """numpy.random.choice, random.choice."""
        items = np.arange(a) if isinstance(a, int | np.integer) else np.asarray(a)
        law = np.ones(len(items)) if p is None else np.asarray(p, dtype=float)
        picked = items[self._draw(law.tolist(), 1 if size is None else int(np.prod(size)), replace)]
        return picked[0] if size is None else picked.reshape(size)

    def _draw(self, weights: list[float], count: int, replacement: bool) -> list[int]:
        drawn: list[int] = []
        for _ in range(count):
            total = sum(weights)
            if not total > 0 or min(weights) < 0:
                raise InputError(f"the code draws from weights {weights}, which are no distribution")
            drawn.append(self.replay.choose([weight / total for weight in weights]))
            if not replacement:
                weights = [0.0 if i == drawn[-1] else weight for i, weight in enumerate(weights)]
        return drawn


class Generator:
    """numpy's Generator over a replay."""

    def __init__(self, fork: Forking) -> None:
        self.random, self.uniform, self.choice = fork.random, fork.uniform, fork.choice
        self.exponential, self.gumbel = fork.exponential, fork.gumbel

    def __getattr__(self, name: str) -> Any:
        return _unknown(f"numpy.random.Generator.{name}")


def _shape(size: Any) -> tuple[int, ...]:
    return () if size is None else (size,) if isinstance(size, int) else tuple(size)


def _unknown(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        raise InputError(f"the code calls {name}, whose distribution cannot be enumerated; {HINT}")

    return refuse


@contextmanager
def forking(replay: BranchReplay) -> Iterator[None]:
    """Replaces the random functions of torch, random and numpy, also where modules imported them by name."""
    fork = Forking(replay)
    swaps: list[tuple[Any, str, Any]] = [
        (torch, "rand", fork.rand),
        (torch, "rand_like", fork.rand_like),
        (torch, "multinomial", fork.multinomial),
        (torch, "bernoulli", fork.bernoulli),
        (torch.Tensor, "multinomial", lambda self, *a, **k: fork.multinomial(self, *a, **k)),
        (torch.Tensor, "bernoulli", lambda self, *a, **k: fork.bernoulli(self, *a, **k)),
        (torch.Tensor, "uniform_", lambda self, *a, **k: fork.uniform_(self, *a, **k)),
        (torch.Tensor, "exponential_", lambda self, *a, **k: fork.exponential_(self, *a, **k)),
        (random, "random", fork.random),
        (random, "expovariate", fork.expovariate),
        (random, "uniform", fork.uniform),
        (random, "choices", fork.choices),
        (random, "choice", fork.choice),
        (np.random, "rand", fork.rand),
        (np.random, "random", fork.random),
        (np.random, "random_sample", fork.random),
        (np.random, "uniform", fork.uniform),
        (np.random, "choice", fork.choice),
        (np.random, "exponential", fork.exponential),
        (np.random, "gumbel", fork.gumbel),
        (np.random, "default_rng", fork.default_rng),
    ]
    refused: list[tuple[Any, str]] = [(torch, n) for n in ("randn", "randint", "randperm", "normal")]
    refused += [(torch.Tensor, n) for n in ("normal_", "random_")]
    refused += [(random, n) for n in ("randint", "randrange", "shuffle", "gauss", "sample")]
    refused += [(np.random, n) for n in ("randint", "randn", "normal", "shuffle", "permutation")]
    swaps += [(owner, name, _unknown(f"{owner.__name__}.{name}")) for owner, name in refused]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in swaps]
    inherited = {(id(owner), name) for owner, name, _ in swaps if name not in vars(owner)}
    copies = _copies({id(old): new for (_, _, old), (_, _, new) in zip(originals, swaps, strict=True)})
    try:
        for owner, name, new in swaps:
            setattr(owner, name, new)
        for module, name, _, new in copies:
            setattr(module, name, new)
        yield
    finally:
        for module, name, old, _ in copies:
            setattr(module, name, old)
        for owner, name, old in originals:
            if (id(owner), name) in inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _copies(new: dict[int, Any]) -> list[tuple[Any, str, Any, Any]]:
    """Returns modules that refer to such a function by their own name: `from random import random`."""
    found = []
    for module in list(sys.modules.values()):
        if module is None or getattr(module, "__name__", "").split(".")[0] in OWN:
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in new and callable(value):
                found.append((module, name, value, new[id(value)]))
    return found
