"""When the rows of a `generate` call end: lengths, end-of-sequence tokens and stopping criteria."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import stopping_criteria as theirs

from specframe.decoding.requests import Entry


class Ends:
    """What ends the rows of one call, each by itself or all together.

    With an end-of-sequence token, a row that has ended is filled with padding. Without one, `generate` goes on writing
    it until the last row has ended, so all rows have the same length.
    """

    def __init__(self, criteria: Sequence[Any], prompts: Tensor) -> None:
        lengths = [criterion for criterion in criteria if type(criterion) is theirs.MaxLengthCriteria]
        tokens = [criterion for criterion in criteria if type(criterion) is theirs.EosTokenCriteria]
        self.new_tokens = max(1, min(int(criterion.max_length) for criterion in lengths) - prompts.shape[1])
        """The most tokens of a row."""
        self.tokens = frozenset(token for criterion in tokens for token in criterion.eos_token_id.tolist())
        """The tokens that end a row."""
        self._rest = [criterion for criterion in criteria if criterion not in lengths and criterion not in tokens]
        self._together = not any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._prompts = prompts
        self._ended: dict[int, int] = {}  # row -> its length when its criteria ended it

    @property
    def stops(self) -> bool:
        """Whether `stop` has to be asked."""
        return bool(self._rest)

    def stop(self, entry: Entry) -> bool:
        """Whether a row ends after its latest token."""
        row = entry.request.number
        if row not in self._ended:
            new = torch.tensor([entry.tokens], dtype=torch.int64, device=self._prompts.device)
            text = torch.cat([self._prompts[row : row + 1], new], 1)
            if any(bool(criterion(text, None).all()) for criterion in self._rest):
                self._ended[row] = len(entry.tokens)
        if self._together:
            return len(self._ended) == len(self._prompts) and len(entry.tokens) >= max(self._ended.values())
        return row in self._ended

    def width(self, entries: Sequence[Entry]) -> int:
        """How many new tokens of every row are final."""
        going = [len(entry.tokens) for entry in entries if entry.ended is None]
        ready = min(going) if going else max(len(entry.tokens) for entry in entries)
        if self._together and self._rest and len(self._ended) == len(entries):
            return min(ready, max(self._ended.values()))
        return ready
