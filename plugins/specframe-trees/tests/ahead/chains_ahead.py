"""Small drafters that draft ahead, and what sessions decode with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.decoding.clock import Clock
from specframe.decoding.overlap import Threads
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.kernel.interfaces import Verifier
from specframe.sampling.laws import Sampling
from specframe.sampling.random import row_seed
from specframe_trees.ahead.ahead import Ahead

WARM = Sampling(temperature=1.0)
NOISE = 1e-9


def model() -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(3, seed=7))


def ahead(kind: type[Ahead] = Ahead, **options: Any) -> Ahead:
    return kind(drafter=model(), **options)


def parts_of(verifier: Verifier, drafter: Ahead, threads: Threads | None = None) -> Parts:
    target = TableTarget(vocab=3, order=2, seed=0)
    drafter.bind(target)
    return Parts(target, drafter, None, verifier, threads=threads)


def emission(verifier: type[Any], make: Callable[[], Ahead], length: int = 4, **options: Any) -> Emission:
    return Emission("", lambda: parts_of(verifier(), make()), WARM, length, (0, 1, 2, 0, 1), **options)


def decoded(parts: Parts, count: int = 200, sampling: Sampling = WARM, clock: Clock | None = None) -> list[list[int]]:
    """The new tokens of so many prompts, eight at a time."""
    prompts = [[(3 * i + j * j) % 3 for j in range(2 + i % 5)] for i in range(count)]
    requests = [
        Request(tokens=prompt, sampling=sampling, seed=row_seed(5, row), max_new_tokens=8 + row % 7)
        for row, prompt in enumerate(prompts)
    ]
    session = Session(parts, 8, 40 + parts.nodes, clock=clock)
    return [entry.tokens for entry in session.run(requests)]
