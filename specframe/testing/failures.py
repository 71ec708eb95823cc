"""What the enumerator objects to is a failed check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specframe.certify.own.forks import HiddenState, UnnormalisedLaw


@contextmanager
def objections() -> Iterator[None]:
    """Turns hidden state and unnormalised laws into an AssertionError with the same message."""
    try:
        yield
    except (HiddenState, UnnormalisedLaw) as error:
        raise AssertionError(str(error)) from error
