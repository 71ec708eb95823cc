"""The committed tokens of a batch of ragged rows, for drafters that read them again."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from specframe.kernel.types import Committed, Prompts

PROMPT_END = 16
"""Number of last prompt tokens put before a predicted continuation, so that matches reach back into the prompt."""


def gained(committed: Committed) -> list[list[int]]:
    """The tokens that a commit adds to each row; for a new row its prompt and the first token after it."""
    rows = committed.texts
    if committed.prompt is not None:  # its tokens are the prompt's from the second on, and one more
        firsts = committed.prompt.tokens[:, 0].tolist()
        rows = [[first, *row] for first, row in zip(firsts, rows, strict=True)]
    return rows


def with_predicted(committed: Committed) -> Committed:
    """The commit with each new row's predicted continuation, after the prompt's last tokens, put before the prompt."""
    if committed.prompt is None or not any(committed.prompt.predicted):
        return committed
    pairs = zip(gained(committed), committed.prompt.predicted, strict=True)
    rows = [[*text[-1 - PROMPT_END : -1], *predicted, *text] if predicted else text for text, predicted in pairs]
    device, count = committed.root.device, [len(row) - 1 for row in rows]
    tokens = pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True)
    counts = torch.tensor(count, device=device)
    return Committed(tokens[:, 1:], counts, {}, committed.root, Prompts(tokens[:, :-1], counts))


class CommittedText:
    """All committed tokens, prompts included; the last one of a row is the next tree's root."""

    def __init__(self) -> None:
        self._tokens = torch.zeros(0, 1, dtype=torch.int64)  # [B, C], anything beyond count
        self.count = torch.zeros(0, dtype=torch.int64)
        """Tokens of each row: [B] int64."""
        self.lengths: list[int] = []
        """The number of tokens of each row, on the host."""

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens; the rows of a commit with a prompt join after the others."""
        if committed.prompt is None:
            self._append(committed.tokens, committed.count)
            return
        new = CommittedText()
        new._tokens, new.count = committed.prompt.tokens[:, :1], torch.ones_like(committed.count)
        new.lengths = [1] * len(committed.count)
        new._append(committed.tokens, committed.count)
        if self.lengths:
            width = max(self._tokens.shape[1], new._tokens.shape[1])
            both = [pad(rows, (0, width - rows.shape[1])) for rows in (self._tokens, new._tokens)]
            new._tokens, new.count = torch.cat(both), torch.cat([self.count, new.count])
        self._tokens, self.count, self.lengths = new._tokens, new.count, self.lengths + new.lengths

    @property
    def tokens(self) -> Tensor:
        """The rows' tokens, [B, longest]; undefined beyond their count."""
        return self._tokens[:, : max(self.lengths)]

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] tokens of each row, at least 1."""
        self.count = torch.minimum(self.count, count)
        self.lengths = self.count.tolist()

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self._tokens = self._tokens.index_select(0, rows)
        self.count = self.count.index_select(0, rows)
        self.lengths = [self.lengths[row] for row in rows.tolist()]

    def _append(self, tokens: Tensor, count: Tensor) -> None:
        """Writes tokens [B, M] after each row; those beyond count [B] are overwritten by the next call."""
        width = tokens.shape[1]
        room = self._tokens.shape[1] - max(self.lengths) - width
        if room < 0:
            spare = max(-room, self._tokens.shape[1])  # doubling keeps the copies rare
            self._tokens = pad(self._tokens, (0, spare))
        where = self.count[:, None] + torch.arange(width, device=tokens.device)  # [B, M]
        self._tokens.scatter_(1, where, tokens)
        self.count = self.count + count
        self.lengths = [have + new for have, new in zip(self.lengths, count.tolist(), strict=True)]
