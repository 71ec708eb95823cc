"""Breakdown of a session's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import torch

PHASES = ("draft", "score", "verify", "commit")
"""Phases of every cycle."""


class Event(Protocol):
    """A mark in the work queue of a device; torch.cuda.Event is one."""

    def record(self, stream: Any) -> None:
        """Marks the end of the work queued so far."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has reached the mark."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds of the device's time between this mark and a later one."""
        ...


class DeviceTimer:
    """Times the work of a device, not its enqueueing by the host: intervals between events in its queue.

    Recording an interval does not wait. `read` waits once, for the last interval, and events are reused.
    """

    def __init__(self, make_event: Callable[[], Event], stream: Any = None) -> None:
        self._make_event = make_event
        self._stream = stream
        self._noted: list[tuple[str, Event, Event]] = []
        self._spare: list[Event] = []

    @classmethod
    def cuda(cls, device: torch.device) -> Self:
        """A timer of the work that torch queues on a CUDA device."""
        return cls(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.current_stream(device))

    def stamp(self) -> Event:
        """A mark at this point of the queue."""
        event = self._spare.pop() if self._spare else self._make_event()
        event.record(self._stream)
        return event

    def note(self, name: str, start: Event) -> None:
        """Ends the interval that began at `start`, whose event must not be used again."""
        self._noted.append((name, start, self.stamp()))

    def read(self) -> list[tuple[str, float]]:
        """The names and seconds of the intervals recorded since the last reading."""
        if not self._noted:
            return []
        self._noted[-1][2].synchronize()  # a queue runs in order: the others are done
        found = [(name, start.elapsed_time(end) / 1000) for name, start, end in self._noted]
        self._spare += [event for _, *events in self._noted for event in events]
        self._noted.clear()
        return found


class Clock:
    """Seconds and calls by name: the loop's phases, and inside them the models' forward passes.

    Phases are prefill, draft, score, verify and commit; forward passes are `target` and `drafter`, recorded
    for cycles alone, not for the prefill. `cycles` is all the time between prefill and end.

    A drafter that works while the target scores is in no phase: the host time of its thread is `overlap`, and the time
    that the loop waits for it is `wait`. So the overhead includes the latter, but not the former.
    """

    def __init__(self, device: DeviceTimer | None = None) -> None:
        """A clock of the host's time, or of a device's, whose seconds are complete after `settle`."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.running: str | None = None
        """The innermost phase that runs now."""
        self.stamp: Callable[[], Any] = perf_counter if device is None else device.stamp
        """A point in time, for `book`."""
        self._device = device

    @classmethod
    def on(cls, device: torch.device | None) -> Self:
        """A clock for work on a device: a CUDA device's own time, otherwise the host's."""
        return cls(DeviceTimer.cuda(device) if device is not None and device.type == "cuda" else None)

    def phase(self, name: str) -> Span:
        """A context manager that adds the time spent inside to `name`."""
        return Span(self, name)

    def book(self, name: str, start: Any) -> None:
        """Adds the time since the stamp `start` to `name`."""
        if self._device is None:
            self.seconds[name] += perf_counter() - start
        else:
            self._device.note(name, start)
        self.calls[name] += 1

    def settle(self) -> None:
        """Waits for a device's pending work and adds its time; once per cycle is enough."""
        if self._device is not None:
            for name, seconds in self._device.read():
                self.seconds[name] += seconds

    @property
    def cycles(self) -> float:
        """Seconds of the session outside the prefill."""
        return self.seconds["session"] - self.seconds["prefill"]

    @property
    def hidden(self) -> float:
        """Seconds of a drafter's work that passed while the target scored."""
        return max(self.seconds["overlap"] - self.seconds["wait"], 0.0)

    @property
    def overhead(self) -> float:
        """Time of cycles outside the forward passes of target and drafter, as a share of these."""
        forwards = self.seconds["target"] + self.seconds["drafter"]
        return self.cycles / forwards - 1 if forwards else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of each phase in the time of the cycles; `other` is the time outside all phases."""
        if self.cycles <= 0:
            return {}
        shares = {name: self.seconds[name] / self.cycles for name in PHASES}
        return {**shares, "other": 1 - sum(shares.values())}

    def add(self, other: Clock) -> None:
        """Adds another clock's times to this one's."""
        for name, value in other.seconds.items():
            self.seconds[name] += value
        for name, calls in other.calls.items():
            self.calls[name] += calls


class Span:
    """One timed interval of a clock's phase; cheap enough to wrap every forward pass."""

    __slots__ = ("clock", "name", "outer", "start")

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock = clock
        self.name = name

    def __enter__(self) -> Span:
        """Starts the interval."""
        self.outer, self.clock.running = self.clock.running, self.name
        self.start = self.clock.stamp()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the interval and adds its time to the clock."""
        clock = self.clock
        clock.book(self.name, self.start)
        clock.running = self.outer
