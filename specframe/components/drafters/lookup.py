"""Prompt lookup: the continuation of an earlier occurrence of the last tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.drafters.text import CommittedText, with_predicted
from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.types import Committed, Context, Draw, TokenTree


class Lookup:
    """Copies up to `length` tokens from the prompt and the text so far (Saxena 2023, prompt lookup decoding).

    Copies what follows the longest suffix of at most `ngram` tokens that occurs earlier in the row, at its
    earliest occurrence, which has the most tokens after it, as in transformers' `prompt_lookup_num_tokens`.
    A copy ends at the end of the text. Rows without a match draft nothing.

    Options:
        ngram: the longest suffix to look up, in tokens
        length: the largest number of tokens to copy
    """

    taps: frozenset[str] = frozenset()

    def __init__(self, *, ngram: int = 3, length: int = 10) -> None:
        if min(ngram, length) < 1:
            raise InputError(f"lookup needs ngram and length of at least 1, got {ngram} and {length}")
        self.ngram = ngram
        self.length = length
        self.promise = Promise(frozenset({Draw.TOP}), length + 1, length)
        self._text = CommittedText()

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A chain below root [B], as long as the batch's longest copy; shorter rows end in invalid nodes."""
        tokens, count = self._text.tokens, self._text.count
        start = self._search(tokens, count)  # [B]
        width = int((count - start).clamp(max=self.length).max())
        if width == 0:
            return TokenTree.root_only(root)
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

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier texts."""
        self._text = CommittedText()

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens; a commit with a prompt adds new rows with their predicted continuations."""
        self._text.commit(with_predicted(committed))

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._text.keep(rows)

    def _search(self, tokens: Tensor, count: Tensor) -> Tensor:
        """Returns the start of each row's copy, [B]; the row's end if nothing matches."""
        length = tokens.shape[1]
        start = count
        position = torch.arange(length, device=tokens.device)
        hits = position < count[:, None] - 1  # [B, L - n + 1] n-grams by first token, with one more after
        for n in range(1, min(self.ngram, length - 1) + 1):
            wanted = tokens.gather(1, (count[:, None] - n).clamp(min=0))  # [B, 1] n-th token from the end
            hits = (hits if n == 1 else hits[:, 1:]) & (tokens[:, : length - n + 1] == wanted)
            first = hits.to(torch.uint8).argmax(1)  # the first match
            start = torch.where(hits.any(1), first + n, start)  # a longer match replaces a shorter one
        return start
