"""Prompt lookup: what followed the last tokens when they stood in the text before."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.drafters.history import History
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import RandomSource, Sampling, Target, TreePolicy
from specframe.kernel.types import Committed, Draw, TokenTree


class Lookup:
    """Copies up to `length` tokens from the prompt and the text so far (Saxena 2023, prompt lookup decoding).

    The longest suffix of at most `ngram` tokens that occurs earlier in the row decides, and of several
    occurrences the earliest, as in transformers' `prompt_lookup_num_tokens`: it has the most to copy
    behind it. A copy ends where the text ends. Rows without a match draft nothing.

    Options:
        ngram: the longest suffix to look for
        length: the most tokens to copy
    """

    taps: frozenset[str] = frozenset()
    draws: frozenset[Draw] | None = frozenset({Draw.TOP})

    def __init__(self, *, ngram: int = 3, length: int = 10) -> None:
        if min(ngram, length) < 1:
            raise InputError(f"lookup needs ngram and length of at least 1, got {ngram} and {length}")
        self.ngram = ngram
        self.length = length
        self.nodes: int | None = length + 1
        self._history: History | None = None

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: TreePolicy | None, sampling: Sampling, random: RandomSource) -> TokenTree:
        """A chain below root [B], as long as the batch's longest copy; shorter rows end in invalid nodes."""
        if self._history is None:
            return TokenTree.stump(root)
        tokens, count = self._history.tokens, self._history.count
        start = self._search(tokens, count)  # [B]
        width = int((count - start).clamp(max=self.length).max())
        if width == 0:
            return TokenTree.stump(root)
        where = start[:, None] + torch.arange(width, device=root.device)  # [B, width]
        real = where < count[:, None]
        copied = tokens.gather(1, where.clamp(max=tokens.shape[1] - 1)).masked_fill(~real, 0)
        everything = torch.cat([root[:, None], copied], 1)
        return TokenTree(
            tokens=everything,
            parent=torch.arange(-1, width, device=root.device).expand_as(everything),
            valid=torch.cat([torch.ones_like(real[:, :1]), real], 1),
            draw=torch.zeros_like(everything),
            levels=width,
        )

    def commit(self, news: Committed) -> None:
        """Appends the committed tokens; news with a prompt starts a new text."""
        self._history = History.after(self._history, news)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        if self._history is not None:
            self._history.keep(rows)

    def _search(self, tokens: Tensor, count: Tensor) -> Tensor:
        """Where the copy of each row starts, [B]; at the row's end if nothing matches."""
        length = tokens.shape[1]
        start = count
        position = torch.arange(length, device=tokens.device)
        hits = position < count[:, None] - 1  # [B, L - n + 1] n-grams by first token, with one more behind
        for n in range(1, min(self.ngram, length - 1) + 1):
            wanted = tokens.gather(1, (count[:, None] - n).clamp(min=0))  # [B, 1] n-th token from the end
            hits = (hits if n == 1 else hits[:, 1:]) & (tokens[:, : length - n + 1] == wanted)
            first = hits.to(torch.uint8).argmax(1)  # of equal ones the first
            start = torch.where(hits.any(1), first + n, start)  # a longer match overrules
        return start
