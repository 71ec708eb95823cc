"""One decoding, timed and its memory taken, with the time that measuring itself adds."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter, time

import torch

from specframe.decoding.clock import Clock
from specframe.kernel.contestant import Contestant, Outcome


@dataclass(frozen=True)
class Timed:
    """An outcome with the time it took."""

    outcome: Outcome
    start: float
    """Start time by `time.perf_counter()`, as arrivals are."""
    began: float
    """Start time in seconds since 1970."""
    seconds: float
    peak_memory_bytes: int | None = None


def time_decoding(contestant: Contestant, rows: Sequence[Sequence[int]], seed: int, device: torch.device) -> Timed:
    """The contestant's continuation of the prompts; queued work of the device is waited for on both ends."""
    torch.manual_seed(seed)
    gc.collect()
    with _no_collection():
        _finish(device)
        began, start = time(), perf_counter()
        outcome = contestant.decode(rows, seed)
        _finish(device)
        seconds = perf_counter() - start
    return Timed(outcome, start, began, seconds)


def time_with_memory(contestant: Contestant, rows: Sequence[Sequence[int]], seed: int, device: torch.device) -> Timed:
    """The outcome with its time and peak of memory, for which the mark of the whole process is lowered first."""
    gc.collect()
    peak = Peak(device)
    peak.reset()
    timed = time_decoding(contestant, rows, seed, device)
    return replace(timed, peak_memory_bytes=peak.read())


@contextmanager
def settled_objects() -> Iterator[None]:
    """Exempts existing objects from garbage collection inside the with block, so that collecting takes no time."""
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


TRIALS = 2000


@cache
def span_seconds() -> float:
    """Seconds that one timed stretch of a clock costs, two hooks' worth of calls included; measured once."""
    clock = Clock()
    start = perf_counter()
    for _ in range(TRIALS):
        with clock.phase("score"):
            pass
    return (perf_counter() - start) / TRIALS


@cache
def arrival_seconds() -> float:
    """Seconds that noting one arrival costs; measured once."""
    times: list[float] = []

    def note(row: int, tokens: list[int]) -> None:
        times.extend([perf_counter()] * len(tokens))

    tokens = [0, 0, 0, 0]
    start = perf_counter()
    for _ in range(TRIALS):
        note(0, tokens)
    return (perf_counter() - start) / TRIALS


PROCESS = Path("/proc/self")


class Peak:
    """A high-water mark that can be lowered again: a CUDA device's, or on Linux the process's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Starts a new stretch."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # man 5 proc: resets VmHWM
        except OSError:
            self._device = torch.device("meta")  # no such file, or not ours to write: the peak is unknown

    def read(self) -> int | None:
        """Bytes at the stretch's peak; None where the system does not report it."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if self._device.type == "meta":
            return None
        status = (PROCESS / "status").read_text(encoding="ascii")
        line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
        return None if line is None else int(line.split()[1]) * 1024
