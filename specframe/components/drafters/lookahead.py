"""Lookahead decoding: n-grams from Jacobi iterations that run in the same forward as their verification."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.drafters.memory.host import gained
from specframe.components.drafters.memory.jacobi import Ngrams, Window
from specframe.components.drafters.memory.trie import Trie, as_tree, find_paths
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.promises import Promise
from specframe.kernel.types import Committed, Context, Cycle, Draw, TokenTree


class Lookahead:
    """Proposes pooled n-grams, and improves guesses of later tokens by the scores of the same forward.

    Both branches of the method are one tree. Below the root stand the n-grams that begin with it, then the window: its
    oldest generation as a path, every other one a level further down each column. The target's likeliest tokens at the
    newest generation are the next one, and every column has then made an n-gram for the pool.

    Source: Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"
    (arXiv 2402.02057).

    Options:
        ngram: the tokens of an n-gram, the one it is looked up by included (N)
        window: positions guessed ahead in every generation (W)
        guesses: the most n-grams that are kept for a token and proposed (G)
        text: whether n-grams of the prompt and the text join the pool
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
        self.promise = Promise(frozenset({Draw.TOP}), (ngram - 1) * (window + guesses))
        self._pools: list[Ngrams] = []
        self._windows: list[Window] = []
        self._ends: list[list[int]] = []  # the last ngram - 1 tokens of each row

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self._pools, self._windows, self._ends = [], [], []

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The pooled n-grams and the window below root [B]; common prefixes are one node."""
        tries = [Trie(token) for token in root.tolist()]
        for trie, pool, window in zip(tries, self._pools, self._windows, strict=True):
            for behind in pool.behind(trie.tokens[0]):
                trie.add_path(behind)
            for path in window.paths():
                trie.add_path(path)
        return as_tree(root, tries)

    def commit(self, committed: Committed) -> None:
        """Takes the n-grams of the committed tokens; rows with a prompt join behind the others."""
        texts = gained(committed)
        if committed.prompt is not None:
            self._pools += [Ngrams(self.ngram, self.guesses) for _ in texts]
            self._windows += [Window(text[:-1], ngram=self.ngram, width=self.window) for text in texts]
            self._ends += [[] for _ in texts]
        first = len(self._pools) - len(texts)
        for row, tokens in enumerate(texts, first):
            whole = [*self._ends[row], *tokens]
            if self.text:
                self._pools[row].add_text(whole)
            self._ends[row] = whole[-(self.ngram - 1) :]

    def observe(self, cycle: Cycle) -> None:
        """Moves every window on by the target's likeliest tokens after its newest generation."""
        if cycle.committed.prompt is not None:
            return  # nothing was drafted yet
        tree, logits = cycle.draft, cycle.scores.logits
        rows = zip(self._windows, tree.tokens.tolist(), tree.parent.tolist(), tree.valid.tolist(), strict=True)
        found = [find_paths(window.paths(), *row) for window, *row in rows]
        nodes = torch.tensor([row or [0] * self.window for row in found], device=logits.device)  # [B, W]
        chosen = logits.gather(1, nodes[..., None].expand(-1, -1, logits.shape[-1]))
        latest: list[list[int]] = chosen.max(-1).indices.tolist()
        roots: list[int] = tree.tokens[:, 0].tolist()
        for row, whole in enumerate(found):
            if whole:  # in a draft made of several, a budget may have cut the window
                for token, behind in self._windows[row].advance(roots[row], latest[row]):
                    self._pools[row].add(token, behind)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        chosen = rows.tolist()
        self._pools = [self._pools[row] for row in chosen]
        self._windows = [self._windows[row] for row in chosen]
        self._ends = [self._ends[row] for row in chosen]
