"""Suffix decoding: the most frequent continuations of the longest suffixes of the text."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specframe.components.drafters.automaton import SuffixAutomaton
from specframe.components.drafters.text import gained, with_predicted
from specframe.components.drafters.trie import Trie, as_tree
from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.types import Committed, Context, Draw, TokenTree


class Suffix:
    """Copies from the prompt and the text so far, more after longer matches (SuffixDecoding, SAM-Decoding).

    Every suffix of the text that occurred before is continued with its most frequent next tokens. A copy ends where its
    path probability, estimated from counts and lower for short matches, falls below `least`. The copy with the most
    expected tokens is proposed. Rows without a match draft nothing.

    Source: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975); SAM-Decoding (Hu et al. 2024, arXiv 2411.10666) for
    the suffix automaton that finds all matches at once.

    Options:
                cap: the largest number of tokens to copy
        doubt: pseudo-count added to the occurrences of a one-token match; a match of m tokens gets doubt / m
        least: the smallest path probability of a copied token
    """

    taps: frozenset[str] = frozenset()

    def __init__(self, *, cap: int = 15, doubt: float = 2.0, least: float = 0.1) -> None:
        if cap < 1 or doubt < 0 or not 0 <= least <= 1:
            raise InputError(
                f"suffix needs cap of at least 1, doubt of at least 0 and least from 0 to 1, "
                f"got {cap}, {doubt:g} and {least:g}"
            )
        self.cap = cap
        self.doubt = doubt
        self.least = least
        self.promise = Promise(frozenset({Draw.TOP}), cap + 1, cap)
        self._rows: list[SuffixAutomaton] = []

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self._rows = []

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A chain below root [B], as long as the batch's longest copy; shorter rows end in invalid nodes."""
        return as_tree(root, self.copies(root), context.costs)

    def copies(self, root: Tensor) -> list[Trie]:
        """Returns each row's copy below its root, as a trie of one chain to which nodes can be added."""
        tries = [Trie(token) for token in root.tolist()]
        for row, trie in zip(self._rows, tries, strict=True):
            copied, node = row.copy(cap=self.cap, doubt=self.doubt, least=self.least), 0
            for token, chance in zip(copied.tokens, copied.probabilities, strict=True):
                node = trie.add(node, token, chance)
        return tries

    def continued(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the tokens that would be copied if each row's text were continued by a path."""
        return [
            row.copy(path, cap=self.cap, doubt=self.doubt, least=self.least).tokens
            for row, path in zip(self._rows, paths, strict=True)
        ]

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens; rows with a prompt join after the others."""
        if committed.prompt is not None:
            self._rows += [SuffixAutomaton(text) for text in gained(with_predicted(committed))]
            return
        for row, tokens in zip(self._rows, gained(committed), strict=True):
            row.extend(tokens)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._rows = [self._rows[row] for row in rows.tolist()]
