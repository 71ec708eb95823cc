"""Retrieval: continuations of the text's last tokens from a store of other texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from heapq import heappop, heappush
from itertools import count

from torch import Tensor

from specframe import InputError
from specframe.plugin import (
    Committed,
    Context,
    Draw,
    Promise,
    Store,
    Target,
    TokenTree,
    TreePolicy,
    Trie,
    as_tree,
    gained,
    untrained_form,
)

log = logging.getLogger("specframe.retrieval")

TAIL = 16
"""Number of tokens of the text that are looked up."""
DOUBT = 2.0
"""Pseudo-count added to the occurrences of a one-token match; a match of m tokens gets DOUBT / m."""


class Retrieval:
    """Proposes the most frequent continuations of the longest suffix of the text that occurs in a store (REST).

    The tree contains the `nodes` most frequent prefixes of the continuations. As in suffix decoding, they are at most
    `factor` times as long as the match, so that a chance match of few tokens costs few nodes.

    With `remember`, the text of every row is added to the store when the row finishes. A draft then depends on earlier
    requests. The output distribution does not, nor does the text under `match`. If a text cannot be stored, for example
    on a full disk, remembering stops with a warning, and decoding continues.

    Source: REST (He et al. 2024, arXiv 2311.08252).

    Options:
        store: the texts
        nodes: maximum number of tree nodes, root included
        length: maximum number of tokens of a continuation
        factor: tokens to copy for each token of the match
        shortest: smallest number of tokens that must match
        least: smallest share of the continuations that a proposed prefix has
        samples: maximum number of occurrences that are used, evenly spaced among all
        remember: whether finished texts are appended to the store
    """

    taps: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        store: Store,
        nodes: int = 16,
        length: int = 10,
        factor: float = 2.0,
        shortest: int = 2,
        least: float = 0.1,
        samples: int = 64,
        remember: bool = False,
    ) -> None:
        if min(nodes, length, shortest, samples) < 1 or factor <= 0 or not 0 <= least <= 1:
            raise InputError(
                "retrieval needs nodes, length, shortest and samples of at least 1, factor above 0 and least from 0 to "
                f"1, got {nodes}, {length}, {shortest}, {samples}, {factor:g} and {least:g}"
            )
        self.store = store
        self.promise = Promise(frozenset({Draw.TOP}), nodes, length)
        self.length = length
        self.factor = factor
        self.shortest = shortest
        self.least = least
        self.samples = samples
        self.remember = remember
        self._most = nodes
        self._texts: list[list[int]] = []

    def untrained(self, vocab: int) -> Retrieval:
        """Returns a copy of this drafter over a store for a target of `vocab` tokens."""
        drafter = copy(self)
        drafter.store = untrained_form(self.store, vocab)
        drafter._texts = []
        return drafter

    def bind(self, target: Target) -> None:
        """Checks that the store was made with the target's tokenizer."""
        self.store.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows, and remembers the texts of earlier rows."""
        finished, self._texts = self._texts, []
        self._finish(finished)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the most frequent continuations below root [B]; rows with fewer nodes end in invalid ones."""
        tries = [Trie(token) for token in root.tolist()]
        for text, trie in zip(self._texts, tries, strict=True):
            self._grow(trie, text)
        return as_tree(root, tries, context.costs)

    def continued(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the most frequent continuation if each row's text continued with a path, if it would be proposed."""
        found = []
        for text, path in zip(self._texts, paths, strict=True):
            trie = Trie(0)
            self._grow(trie, [*text[-TAIL:], *path])
            found.append(trie.first_path())
        return found

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens; rows with a prompt are added after the others."""
        if committed.prompt is not None:
            self._texts += gained(committed)
            return
        for text, tokens in zip(self._texts, gained(committed), strict=True):
            text.extend(tokens)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the texts of other rows are finished."""
        chosen = rows.tolist()
        left = set(chosen)
        finished = [text for row, text in enumerate(self._texts) if row not in left]
        self._texts = [self._texts[row] for row in chosen]
        self._finish(finished)

    def _finish(self, texts: Sequence[Sequence[int]]) -> None:
        """Remembers texts that are no longer decoded; if that fails, decoding continues without remembering."""
        if not self.remember or not texts:
            return
        try:
            self.store.append(texts)
        except Exception as error:  # storing may fail in any way, but requests are waiting
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            log.warning("finished texts are remembered no more: %s", reason)
            self.remember = False

    def _grow(self, trie: Trie, text: Sequence[int]) -> None:
        """Adds the most frequent prefixes of a text's continuations, of equally frequent ones the shorter first."""
        found = self.store.find(text[-TAIL:], length=self.length, limit=self.samples)
        if found.match < self.shortest or int(found.match * self.factor) < 1:
            return
        fewest = self.least * len(found.tokens)
        most = min(self.length, int(found.match * self.factor))
        arrivals = count()
        waiting: list[tuple[int, int, int, int, int, float, list[list[int]]]] = []

        def offer(node: int, depth: int, rows: list[list[int]]) -> None:
            """Queues the tokens that follow a node in some continuations."""
            after: dict[int, list[list[int]]] = {}
            for row in rows:
                if len(row) > depth:
                    after.setdefault(row[depth], []).append(row)
            known = len(rows) + DOUBT / (found.match + depth)
            for token, having in after.items():
                if len(having) >= fewest:
                    chance = trie.chances[node] * len(having) / known
                    heappush(waiting, (-len(having), depth + 1, next(arrivals), node, token, chance, having))

        offer(0, 0, found.tokens)
        while waiting and len(trie) < self._most:
            _, depth, _, parent, token, chance, rows = heappop(waiting)
            node = trie.add(parent, token, chance)
            if depth < most:  # longer ones are at most as frequent, so they are queued later
                offer(node, depth, rows)
