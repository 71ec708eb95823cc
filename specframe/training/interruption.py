"""Ctrl-C in training: the step in flight is finished and the state saved, then training ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interruption:
    """A context in which the first SIGINT or SIGTERM only sets `asked`; a second one interrupts at once.

    Outside the main thread, where signals cannot be caught, it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        """Begins to listen."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        """Puts the earlier handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
