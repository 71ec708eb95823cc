"""Exclusive use of a target by one caller at a time, since its state is that of one session."""

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
    guard: Lock = field(default_factory=Lock)
    """Held while a session claims the target, or starts a cycle under its claim."""
    owner: int | None = None
    """The thread that decodes with the target."""
    active: int | None = None
    """The thread that runs a session's cycle or admission now."""
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
def exclusive_use(target: Target) -> Iterator[None]:
    """Locks the target within the with block; other threads wait for it.

    Raises InputError in a thread that already holds the target, as in a listener that decodes with the same target.
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


OPENED = (
    "another session was opened on this target while this one was decoding: a target serves one caller at "
    "a time, so use one model object for each thread, and do not decode within a listener"
)


def claim(target: Target, session: object) -> None:
    """Makes this the session whose rows the target holds; an earlier session is over.

    Raises InputError while another thread decodes with the target.
    """
    turn = _turn(target)
    with turn.guard:
        if turn.active not in (None, get_ident()):
            raise InputError(OPENED)
        turn.session = ref(session)


def require_claim(target: Target, session: object) -> None:
    """Raises InputError unless this session was the last to claim the target."""
    holder = _turn(target).session
    if holder is None or holder() is not session:
        raise InputError(OPENED)


class Claimed:
    """A `with` block in which a session decodes with its target. Raises InputError if another session claimed it."""

    def __init__(self, target: Target, session: object) -> None:
        self._target, self._session, self._turn = target, session, _turn(target)

    def __enter__(self) -> None:
        with self._turn.guard:
            require_claim(self._target, self._session)
            self._before, self._turn.active = self._turn.active, get_ident()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._turn.active = self._before
        if isinstance(error, Exception):  # its cause may be that another session has replaced the rows
            require_claim(self._target, self._session)
