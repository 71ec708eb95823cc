"""Texts that drafters copy from: the interface of stores, the result of a query, and drafters that continue drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Target


@dataclass(frozen=True)
class Continuations:
    """Continuations of the longest suffix of a query that occurs in a store."""

    match: int
    """Tokens of that suffix; 0 if none occurs."""
    tokens: list[list[int]]
    """The tokens after its occurrences, or after an even share of them; none after the end of a text."""


class Store(Protocol):
    """Tokenized texts that drafters copy from, shared by the sessions of a run."""

    def bind(self, target: Target) -> None:
        """Checks that the texts are of the target's tokenizer. Raises InputError if they are not."""
        ...

    def find(self, tail: Sequence[int], *, length: int, limit: int) -> Continuations:
        """Finds up to `limit` continuations of `length` tokens at most of the longest suffix of `tail` that occurs."""
        ...

    def append(self, texts: Sequence[Sequence[int]]) -> None:
        """Adds texts, which later queries find. Raises InputError if they cannot be kept."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """A drafter that also copies after tokens that were drafted and are not committed yet."""

    def continued(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the chain it would propose if each row's text went on by a path from below its root; [] for none."""
        ...
