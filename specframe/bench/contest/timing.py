"""One decoding, timed: nothing else happens meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, time

import torch

from specframe.bench.contest.memory import Peak
from specframe.kernel.contestant import Contestant
from specframe.kernel.types import Outcome


@dataclass(frozen=True)
class Timed:
    """An outcome with the time it took."""

    outcome: Outcome
    start: float
    """By `time.perf_counter()`, as arrivals are."""
    began: float
    """The same moment in seconds since 1970."""
    seconds: float
    peak_memory_bytes: int | None


def time_decoding(contestant: Contestant, rows: Sequence[Sequence[int]], seed: int, device: torch.device) -> Timed:
    """The contestant's continuation of the prompts; queued work of the device is waited for on both ends."""
    peak = Peak(device)
    torch.manual_seed(seed)
    gc.collect()
    peak.reset()
    with _no_collection():
        _finish(device)
        began, start = time(), perf_counter()
        outcome = contestant.decode(rows, seed)
        _finish(device)
        seconds = perf_counter() - start
    return Timed(outcome, start, began, seconds, peak.read())


@contextmanager
def settled_objects() -> Iterator[None]:
    """While it lasts, collecting garbage leaves what exists now aside, and so takes no time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _no_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
