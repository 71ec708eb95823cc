"""What a part may offer so that its certificate, which enumerates everything, comes to an end."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable


@runtime_checkable
class Shrinkable(Protocol):
    """A tree policy that has a small form, or a drafter that builds its own trees and has one."""

    def smaller(self) -> Self:
        """The same part with two levels, two children a node and four drafted nodes at most; this one stays."""
        ...


@runtime_checkable
class Untrained(Protocol):
    """A drafter, head, verifier or store made for one target that has a form for any other, such as a tiny one."""

    def untrained(self, vocab: int) -> Self:
        """The same part before `bind`, without trained weights or tables, for a target of `vocab` tokens."""
        ...
