"""LogitSpec: runners-up in the last logits as guesses of the token after the next one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specframe import InputError
from specframe.plugin import (
    Committed,
    Context,
    Cycle,
    Draw,
    Promise,
    Suffix,
    Target,
    TokenTree,
    TreePolicy,
    as_tree,
    top_ids,
)

LENGTHS = ((8, 4), (32, 3))
"""Number of tokens copied after a guess, up to a rank; later guesses get one token."""


class LogitSpec:
    """Proposes a copy of the text, and guesses from the root's logits with copies after them.

    The target's logits at one position also predict the next one: a token that was likely but not chosen may come one
    token later. The guesses are children of the root, most likely first. Each is continued by a search of the text for
    its earlier continuations, without a forward pass.

    Source: LogitSpec (Liu et al. 2025, arXiv 2507.01449). Its longest copy is the most frequent continuation of three
    tokens; here all matches are used, as in `suffix`.

    Options:
        nodes: maximum number of tree nodes, root included
        guesses: number of guesses from the last logits
        cap: maximum number of copied tokens
        doubt: pseudo-count added to the occurrences of a one-token match; a match of m tokens gets doubt / m
        least: smallest path probability that is copied
    """

    taps: frozenset[str] = frozenset()

    def __init__(
        self, *, nodes: int = 64, guesses: int = 32, cap: int = 20, doubt: float = 2.0, least: float = 0.1
    ) -> None:
        if min(nodes, guesses) < 1:
            raise InputError(f"logitspec needs nodes and guesses of at least 1, got {nodes} and {guesses}")
        self.nodes = nodes
        self.guesses = guesses
        self.promise = Promise(frozenset({Draw.TOP}), max(nodes, cap + 1))
        self._suffix = Suffix(cap=cap, doubt=doubt, least=least)
        self._last: list[list[int]] = []  # by row, the most likely tokens of the logits that gave its root

    def bind(self, target: Target) -> None:
        """Does nothing: the drafter needs no part of the target."""

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self._suffix.open(slots, room)
        self._last = []

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the copy and the guesses below root [B]; rows with fewer nodes end in invalid ones."""
        tries = self._suffix.copies(root)
        for rank in range(self.guesses):
            paths = [row[rank : rank + 1] for row in self._last]
            length = next((length for most, length in LENGTHS if rank < most), 1)
            for trie, path, after in zip(tries, paths, self._suffix.continued(paths), strict=True):
                if path and path[0] != trie.tokens[0]:
                    trie.add_path([*path, *after[:length]][: self.nodes - len(trie)])
        return as_tree(root, tries)

    def continued(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the tokens that would be copied if each row's text continued with a path."""
        return self._suffix.continued(paths)

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens; rows with a prompt are added after the others."""
        self._suffix.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Stores the most likely tokens after the last accepted node of each row."""
        logits, verdict = cycle.scores.logits, cycle.verdict
        nodes = [row[-1] if row else 0 for row in verdict.to_host(cycle.draft).paths]
        last = logits[range(len(nodes)), nodes]  # [B, V]
        found = top_ids(last, min(self.guesses, last.shape[-1])).tolist()
        self._last = [*self._last, *found] if cycle.committed.prompt is not None else found

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._suffix.keep(rows)
        self._last = [self._last[row] for row in rows.tolist()]
