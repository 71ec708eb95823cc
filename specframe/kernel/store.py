"""Texts that drafters copy from: the interface of stores, the result of a query, and drafters that continue drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Drafter, Target


@dataclass(frozen=True)
class Continuations:
    """Continuations of the longest suffix of a query that occurs in a store."""

    match: int
    """Tokens of that suffix; 0 if none occurs."""
    tokens: list[list[int]]
    """The tokens after its occurrences, or after an even selection of them; none past the end of a text."""


class Store(Protocol):
    """Tokenized texts that drafters copy from, shared by the sessions of a run."""

    def bind(self, target: Target) -> None:
        """Checks that the texts are of the target's tokenizer. Raises InputError if they are not."""
        ...

    def find(self, tail: Sequence[int], *, length: int, limit: int) -> Continuations:
        """Finds up to `limit` continuations of at most `length` tokens of the longest suffix of `tail` that occurs."""
        ...

    def append(self, texts: Sequence[Sequence[int]]) -> None:
        """Adds texts for later queries. Raises InputError if they cannot be kept."""
        ...


def continuation_of(drafter: Drafter) -> Callable[[Sequence[Sequence[int]]], list[list[int]]] | None:
    """The method `continued` of a drafter that can also copy after drafted tokens, before they are committed.

    Given a path below each row's root, it returns the chain that the drafter would propose after it; [] for none.
    It is None for other drafters.
    """
    return getattr(drafter, "continued", None)
