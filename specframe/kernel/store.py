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


def continuation_of(drafter: Drafter) -> Callable[[Sequence[Sequence[int]]], list[list[int]]] | None:
    """The method `continued` of a drafter that also copies after tokens that are drafted and not committed yet.

    It returns the chains that the drafter would propose if each row's text went on by a path from below its root; []
    for none.
    """
    return getattr(drafter, "continued", None)
