"""Text lengths of a session's rows, and the drafter's cost of reading them per token of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from specframe.plugin import Cycle

ANSWERS = 64.0
"""Number of answers over which their length is averaged."""


@dataclass
class RowText:
    """The text of a row, measured in tokens."""

    prompt: int
    length: int
    read: int = 0
    """Number of tokens that the drafter has read: at its last use, all but the newest."""

    @property
    def answer(self) -> int:
        """Length of the answer so far."""
        return self.length - self.prompt


class RowTexts:
    """The texts of a session's rows, and the average length of ended answers."""

    def __init__(self) -> None:
        self.rows: list[RowText] = []
        self._ended = self._tokens = 0.0  # discounted numbers of ended answers and of their tokens

    @property
    def longest(self) -> int:
        """Length of the longest text."""
        return max((text.length for text in self.rows), default=0)

    def observe(self, cycle: Cycle) -> None:
        """Counts the committed tokens of a cycle; rows with a prompt are new and follow the others."""
        counts, prompt = cycle.verdict.count.tolist(), cycle.committed.prompt
        if prompt is not None:
            self.rows += [
                RowText(size, size + count) for size, count in zip(prompt.count.tolist(), counts, strict=True)
            ]
        for text, count in zip(self.rows if prompt is None else (), counts, strict=False):
            text.length += count

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order; the answers of the others have ended."""
        stay = set(rows)
        for row, text in enumerate(self.rows):
            if row not in stay:
                self._ended = self._ended * (1 - 1 / ANSWERS) + 1
                self._tokens = self._tokens * (1 - 1 / ANSWERS) + text.answer
        self.rows = [self.rows[row] for row in rows]

    def drafted(self) -> None:
        """Records that the drafter is used and therefore reads all texts."""
        for text in self.rows:
            text.read = text.length - 1

    def unread(self, left: Sequence[int]) -> float:
        """Returns the tokens that a drafter reads per answer token: prompts, and tokens that it has not read yet.

        Whole answers are counted, so that the value is equal before and after prompts are read. `left` is the number of
        tokens that each row may still generate. An answer is expected to have the average length; one that has reached
        half of it is expected to continue for as long as it is now.
        """
        read = answers = 0.0
        usual = self._tokens / self._ended if self._ended else inf
        most: Sequence[float] = left or [inf] * len(self.rows)
        for text, limit in zip(self.rows, most, strict=True):
            read += max(text.prompt, text.length - 1 - text.read)
            answers += text.answer + min(limit, max(usual - text.answer, text.answer, 1))
        return read / answers if answers else 0.0
