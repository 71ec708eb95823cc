"""The committed tokens of a batch of ragged rows, for drafters that read them again."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.types import Committed


class History:
    """All committed tokens, prompts included; the last one of a row is the next tree's root."""

    def __init__(self, first: Tensor) -> None:
        self._tokens = first[:, None]  # [B, C], anything beyond count
        self.count = torch.ones_like(first)
        """Tokens of each row: [B] int64."""
        self.lengths = [1] * len(first)
        """The same on the host."""

    @classmethod
    def after(cls, history: History | None, news: Committed) -> History:
        """The history with the news taken in; news with a prompt starts a new one."""
        if news.prompt is not None:
            history = cls(news.prompt.tokens[:, 0])
        if history is None:
            raise RuntimeError("a drafter's first commit must carry the prompt")
        history._append(news.tokens, news.count)
        return history

    @property
    def tokens(self) -> Tensor:
        """The rows' tokens, anything beyond their count: [B, longest]."""
        return self._tokens[:, : max(self.lengths)]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self._tokens = self._tokens.index_select(0, rows)
        self.count = self.count.index_select(0, rows)
        self.lengths = [self.lengths[row] for row in rows.tolist()]

    def _append(self, tokens: Tensor, count: Tensor) -> None:
        """Writes tokens [B, M] behind each row; what lies beyond count [B] is overwritten next time."""
        width = tokens.shape[1]
        room = self._tokens.shape[1] - max(self.lengths) - width
        if room < 0:
            spare = max(-room, self._tokens.shape[1])  # doubling keeps the copies rare
            self._tokens = torch.nn.functional.pad(self._tokens, (0, spare))
        where = self.count[:, None] + torch.arange(width, device=tokens.device)  # [B, M]
        self._tokens.scatter_(1, where, tokens)
        self.count = self.count + count
        self.lengths = [have + new for have, new in zip(self.lengths, count.tolist(), strict=True)]
