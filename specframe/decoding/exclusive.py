"""One caller at a time for each target: its state is that of one session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from weakref import ReferenceType, WeakKeyDictionary, ref

from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target


@dataclass
class _Turn:
    lock: Lock = field(default_factory=Lock)
    owner: int | None = None
    """The thread that decodes with the target."""
    session: ReferenceType[object] | None = None
    """The session whose rows the target holds; a weak reference, since a session holds its target."""


_turns: WeakKeyDictionary[Target, _Turn] = WeakKeyDictionary()
_making = Lock()


def _turn(target: Target) -> _Turn:
    if (found := _turns.get(target)) is not None:
        return found
    with _making:
        return _turns.setdefault(target, _Turn())


@contextmanager
def alone(target: Target) -> Iterator[None]:
    """Holds the target inside the with block; other threads that want it wait.

    Raises InputError in a thread that holds the target already: a listener that decodes with the target it listens to.
    """
    turn = _turn(target)
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


def claim(target: Target, session: object) -> None:
    """Makes this the session whose rows the target holds; an earlier one is over."""
    _turn(target).session = ref(session)


def require_claim(target: Target, session: object) -> None:
    """Raises InputError unless the session is the last that claimed the target."""
    holder = _turn(target).session
    if holder is None or holder() is not session:
        raise InputError(
            "another session was opened on this target while this one was decoding: a target serves one caller at "
            "a time, so use one model object for each thread, and do not decode within a listener"
        )
