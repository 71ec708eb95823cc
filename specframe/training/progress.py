"""Display of a training run's progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from specframe.files.text import printable
from specframe.kernel.training import Watcher


def watch(stream: TextIO | None = None) -> Watcher:
    """A progress bar if the stream (standard error) is a terminal, else plain lines."""
    stream = stream or sys.stderr
    return Bar(stream) if stream.isatty() else Lines(stream)


class Silent:
    """Prints nothing."""

    def start(self, done: int, total: int, note: str) -> None:
        """Does nothing."""

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Does nothing."""

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """Does nothing."""

    def finish(self, note: str) -> None:
        """Does nothing."""


class Together:
    """Passes every event to several watchers, in order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers

    def start(self, done: int, total: int, note: str) -> None:
        """Passes it to all watchers."""
        for watcher in self.watchers:
            watcher.start(done, total, note)

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Passes it to all watchers."""
        for watcher in self.watchers:
            watcher.report(step, figures)

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """Passes it to all watchers."""
        for watcher in self.watchers:
            watcher.validated(step, figures)

    def finish(self, note: str) -> None:
        """Passes it to all watchers."""
        for watcher in self.watchers:
            watcher.finish(note)


class Lines:
    """One plain line per event."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.total = 0

    def start(self, done: int, total: int, note: str) -> None:
        """Prints the note."""
        self.total = total
        self._print(note)

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Prints the figures."""
        self._print(f"step {step}/{self.total}  {_words(figures)}")

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """Prints the figures."""
        self._print(f"step {step}/{self.total}  validation: {_words(figures)}")

    def finish(self, note: str) -> None:
        """Prints the note."""
        self._print(note)

    def _print(self, line: str) -> None:
        print(printable(line), file=self.stream, flush=True)


class Bar:
    """A rich progress bar with the latest losses; validations are printed above it."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, markup=False, emoji=False, highlight=False)
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self.console,
        )
        self.task: TaskID | None = None

    def start(self, done: int, total: int, note: str) -> None:
        """Shows the bar."""
        self.console.print(printable(note))
        self.task = self.bar.add_task("training", total=total, completed=done, figures="")
        self.bar.start()

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Moves the bar."""
        if self.task is not None:
            self.bar.update(self.task, completed=step, figures=_words(figures))

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """Prints the figures above the bar."""
        self.bar.console.print(f"step {step}  validation: {_words(figures)}")

    def finish(self, note: str) -> None:
        """Removes the bar."""
        self.bar.stop()
        self.console.print(printable(note))


def _words(figures: Mapping[str, float]) -> str:
    return printable("  ".join(f"{name} {_number(value)}" for name, value in figures.items()))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
