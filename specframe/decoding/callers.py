"""One caller at a time for each target: its state is that of one session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from weakref import WeakKeyDictionary

from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target


@dataclass
class _Turn:
    lock: Lock = field(default_factory=Lock)
    owner: int | None = None


_turns: WeakKeyDictionary[Target, _Turn] = WeakKeyDictionary()
_making = Lock()


@contextmanager
def alone(target: Target) -> Iterator[None]:
    """While it lasts, other threads that want the target wait.

    Raises InputError in a thread that has the target already: a listener that decodes with what is being decoded with.
    """
    with _making:
        turn = _turns.setdefault(target, _Turn())
    if turn.owner == get_ident():
        raise InputError(
            "this target is decoding already: do not decode within a listener, nor begin another session before the "
            "last one is over; take a second model object for that"
        )
    with turn.lock:
        turn.owner = get_ident()
        try:
            yield
        finally:
            turn.owner = None
