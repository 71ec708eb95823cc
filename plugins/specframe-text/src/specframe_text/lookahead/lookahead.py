"""Lookahead decoding: n-grams from Jacobi iterations that run in the same forward pass as verification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import (
    Committed,
    Context,
    Cycle,
    Draw,
    Promise,
    Target,
    TokenTree,
    TreePolicy,
    Trie,
    as_tree,
    gained,
)


class NgramPool:
    """The last `most` n-grams that begin with each token."""

    def __init__(self, length: int, most: int) -> None:
        self.length = length
        self.most = most
        self._after: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, token: int, after: tuple[int, ...]) -> None:
        """Adds the tokens after a token; if there are too many n-grams, the oldest is dropped."""
        known = self._after.setdefault(token, {})
        known.pop(after, None)
        known[after] = None
        if len(known) > self.most:
            del known[next(iter(known))]

    def add_text(self, text: Sequence[int]) -> None:
        """Adds every n-gram of a text."""
        for place in range(len(text) - self.length + 1):
            self.add(text[place], tuple(text[place + 1 : place + self.length]))

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Returns the n-grams that begin with a token, without that token, most recent first."""
        return list(self._after.get(token, ()))[::-1]


class Window:
    """Guesses of the next `width` positions, in `ngram` - 1 generations (Fu et al. 2024, section 3).

    Column i of generation l guesses the token l + i positions after the root. Generation 0 has no column 0, which would
    be the root. Each forward pass over the window adds a generation, and the oldest one is dropped.
    """

    def __init__(self, prompt: Sequence[int], *, ngram: int, width: int) -> None:
        # The paper starts with random tokens of the prompt. Here the last ones are repeated: drafting then needs no
        # random numbers, and a few cycles later they have left the window.
        cells = [prompt[-1 - place % len(prompt)] for place in range((ngram - 1) * width)]
        self._rows = [cells[row * width : (row + 1) * width] for row in range(ngram - 1)]
        self._rows[0] = self._rows[0][1:]

    def paths(self) -> list[list[int]]:
        """Returns the tokens of each column, from below the root to its newest generation."""
        first, *others = self._rows
        return [[*first[:column], *(row[column] for row in others)] for column in range(len(first) + 1)]

    def advance(self, root: int, latest: list[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Adds the newest generation, drops the oldest, and returns the columns' n-grams: (first token, the others)."""
        first, *others = self._rows
        columns = zip([root, *first], *others, latest, strict=True)
        found = [(column[0], column[1:]) for column in columns]
        self._rows = [*others, latest]
        self._rows[0] = self._rows[0][1:]
        return found


class Lookahead:
    """Proposes pooled n-grams, and improves guesses of later tokens by the scores of the same forward pass.

    Both branches of the method are one tree. Below the root are the n-grams that begin with it, then the window: its
    oldest generation as a path, and the later ones level by level below each column. The target's most likely tokens at
    the newest generation form the next one, and every column then gives an n-gram for the pool.

    Source: Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (arXiv
    2402.02057).

    Options:
        ngram: tokens of an n-gram, including the one that it is looked up by (N)
        window: positions guessed ahead in every generation (W)
        guesses: maximum number of n-grams that are kept for a token and proposed (G)
        text: whether n-grams of the prompt and the text are added to the pool
    """

    taps: frozenset[str] = frozenset()

    def __init__(self, *, ngram: int = 3, window: int = 5, guesses: int = 3, text: bool = True) -> None:
        if ngram < 2 or min(window, guesses) < 1:
            raise InputError(
                f"lookahead needs ngram of at least 2, window and guesses of at least 1, "
                f"got {ngram}, {window} and {guesses}"
            )
        self.ngram = ngram
        self.window = window
        self.guesses = guesses
        self.text = text
        self.promise = Promise(frozenset({Draw.TOP}), (ngram - 1) * (window + guesses), needs_all_scores=True)
        self._pools: list[NgramPool] = []
        self._windows: list[Window] = []
        self._ends: list[list[int]] = []  # the last ngram - 1 tokens of each row

    def bind(self, target: Target) -> None:
        """Does nothing: the drafter needs no part of the target."""

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self._pools, self._windows, self._ends = [], [], []

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the pooled n-grams and the window below root [B]; common prefixes are shared nodes."""
        tries = [Trie(token) for token in root.tolist()]
        for trie, pool, window in zip(tries, self._pools, self._windows, strict=True):
            for after in pool.after(trie.tokens[0]):
                trie.add_path(after)
            for path in window.paths():
                trie.add_path(path)
        return as_tree(root, tries)

    def commit(self, committed: Committed) -> None:
        """Adds the n-grams of the committed tokens; rows with a prompt are added after the others."""
        texts = gained(committed)
        if committed.prompt is not None:
            self._pools += [NgramPool(self.ngram, self.guesses) for _ in texts]
            self._windows += [Window(text[:-1], ngram=self.ngram, width=self.window) for text in texts]
            self._ends += [[] for _ in texts]
        first = len(self._pools) - len(texts)
        for row, tokens in enumerate(texts, first):
            whole = [*self._ends[row], *tokens]
            if self.text:
                self._pools[row].add_text(whole)
            self._ends[row] = whole[-(self.ngram - 1) :]

    def observe(self, cycle: Cycle) -> None:
        """Advances every window by the target's most likely tokens after its newest generation."""
        if cycle.committed.prompt is not None:
            return  # nothing has been drafted yet
        tree, logits = cycle.draft, cycle.scores.logits
        rows = zip(self._windows, tree.tokens.tolist(), tree.parent.tolist(), tree.valid.tolist(), strict=True)
        found = [find_paths(window.paths(), *row) for window, *row in rows]
        nodes = torch.tensor([row or [0] * self.window for row in found], device=logits.device)  # [B, W]
        chosen = logits.gather(1, nodes[..., None].expand(-1, -1, logits.shape[-1]))
        latest: list[list[int]] = chosen.max(-1).indices.tolist()
        roots: list[int] = tree.tokens[:, 0].tolist()
        for row, whole in enumerate(found):
            if whole:  # in a draft merged from several, a budget may have cut the window
                for token, after in self._windows[row].advance(roots[row], latest[row]):
                    self._pools[row].add(token, after)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        chosen = rows.tolist()
        self._pools = [self._pools[row] for row in chosen]
        self._windows = [self._windows[row] for row in chosen]
        self._ends = [self._ends[row] for row in chosen]


def find_paths(
    paths: Iterable[Sequence[int]], tokens: Sequence[int], parents: Sequence[int], valid: Sequence[bool]
) -> list[int]:
    """Returns the nodes of a row's tree at the ends of these paths; empty if one of the paths is missing."""
    children: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(parents, tokens, strict=True)):
        if valid[node]:
            children.setdefault(key, node)
    found = []
    for path in paths:
        node = 0
        for token in path:
            if (node, token) not in children:
                return []
            node = children[node, token]
        found.append(node)
    return found
