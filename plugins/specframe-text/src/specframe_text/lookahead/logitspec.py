"""LogitSpec: the runners-up of the last logits as guesses of the token after the next one."""

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
"""Number of tokens copied after each guess, up to a rank; one after later ones."""


class LogitSpec:
    """Proposes a copy of the text, and guesses from the logits that the root is from, with copies after them.

    The target's logits for one position are a guess of the next one, too: a token that was likely but not chosen may
    come one token later. The guesses stand below the root, the likeliest first; each is continued by searching the text
    for its earlier continuations, which needs no forward pass.

    Source: LogitSpec (Liu et al. 2025, arXiv 2507.01449), whose longest copy takes the most frequent continuation of
    three tokens; here all matches are looked at, as `suffix` does.

    Options:
        nodes: the most nodes of a tree, the root included
        guesses: how many of the last logits' tokens are guesses
        cap: the most tokens to copy
        doubt: how many occurrences a match of one token is doubted by; a longer one by its share of them
        least: the smallest path probability that is copied
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
        self._last: list[list[int]] = []  # of each row the likeliest tokens of the logits that its root is from

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self._suffix.open(slots, room)
        self._last = []

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The copy and the guesses below root [B]; rows with fewer nodes end in invalid ones."""
        tries = self._suffix.copies(root)
        for rank in range(self.guesses):
            paths = [row[rank : rank + 1] for row in self._last]
            length = next((length for most, length in LENGTHS if rank < most), 1)
            for trie, path, after in zip(tries, paths, self._suffix.continued(paths), strict=True):
                if path and path[0] != trie.tokens[0]:
                    trie.add_path([*path, *after[:length]][: self.nodes - len(trie)])
        return as_tree(root, tries)

    def continued(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the tokens that would be copied if each row's text went on by a path."""
        return self._suffix.continued(paths)

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens; rows with a prompt join after the others."""
        self._suffix.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Keeps the likeliest tokens after the last accepted node of each row."""
        logits, verdict = cycle.scores.logits, cycle.verdict
        nodes = [row[-1] if row else 0 for row in verdict.to_host(cycle.draft).paths]
        last = logits[range(len(nodes)), nodes]  # [B, V]
        found = top_ids(last, min(self.guesses, last.shape[-1])).tolist()
        self._last = [*self._last, *found] if cycle.committed.prompt is not None else found

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._suffix.keep(rows)
        self._last = [self._last[row] for row in rows.tolist()]
