"""Measures time and memory of one decoding, and the overhead of the measurement."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter, process_time, thread_time, time
from typing import NamedTuple, Self

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
    waited: float | None = None
    """Seconds in which other processes had the processor; None if the system does not count them."""
    peak_memory_bytes: int | None = None


class Accounts(NamedTuple):
    """Seconds that Linux has counted up to a moment."""

    delay: float
    """The time in which this thread was ready to run and another thread ran in its place."""
    busy: float
    """Processor time of all processes."""
    own: float
    """Processor time of all threads of this process."""
    thread: float
    """Processor time of this thread."""

    @classmethod
    def read(cls) -> Self | None:
        """The current accounts; None if the system keeps none."""
        try:
            delay = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
            user, nice, system, _, _, irq, softirq = map(int, _first_line("/proc/stat").split()[1:8])
        except (OSError, ValueError, IndexError):
            return None
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return cls(delay, busy, process_time(), thread_time())

    def waited(self, since: Accounts) -> float:
        """Seconds that this thread has waited for other processes.

        The share of this process's own threads, which a contestant may have started, is left out.
        """
        others = max(self.busy - since.busy - (self.own - since.own), 0.0)
        helpers = max(self.own - since.own - (self.thread - since.thread), 0.0)
        return (self.delay - since.delay) * others / (others + helpers) if others else 0.0


def _first_line(path: str) -> str:
    with Path(path).open(encoding="ascii") as file:
        return file.readline()


def time_decoding(contestant: Contestant, rows: Sequence[Sequence[int]], seed: int, device: torch.device) -> Timed:
    """The contestant's continuation of the prompts, timed with device synchronisation before and after."""
    torch.manual_seed(seed)
    gc.collect()
    with _no_collection():
        _finish(device)
        before = Accounts.read()
        began, start = time(), perf_counter()
        outcome = contestant.decode(rows, seed)
        _finish(device)
        seconds = perf_counter() - start
        after = Accounts.read()
    waited = None if before is None or after is None else min(after.waited(before), seconds)
    return Timed(outcome, start, began, seconds, waited)


def time_with_memory(contestant: Contestant, rows: Sequence[Sequence[int]], seed: int, device: torch.device) -> Timed:
    """The outcome with its time and peak memory; the peak counter of the whole process is reset first."""
    gc.collect()
    peak = Peak(device)
    peak.reset()
    timed = time_decoding(contestant, rows, seed, device)
    return replace(timed, peak_memory_bytes=peak.read())


@contextmanager
def settled_objects() -> Iterator[None]:
    """Exempts existing objects from garbage collection inside the with block, so that it does not affect timing."""
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
    """Overhead in seconds of one timed span of a clock, including the calls of two hooks; measured once."""
    clock = Clock()
    start = perf_counter()
    for _ in range(TRIALS):
        with clock.phase("score"):
            pass
    return (perf_counter() - start) / TRIALS


@cache
def arrival_seconds() -> float:
    """Overhead in seconds of recording one arrival; measured once."""
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
    """A resettable peak memory counter: a CUDA device's, or on Linux the process's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Resets the peak."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # man 5 proc: resets VmHWM
        except OSError:
            self._device = torch.device("meta")  # no such file, or not ours to write: the peak is unknown

    def read(self) -> int | None:
        """Peak memory in bytes since the last reset; None if the system does not report it."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if self._device.type == "meta":
            return None
        status = (PROCESS / "status").read_text(encoding="ascii")
        line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
        return None if line is None else int(line.split()[1]) * 1024
