"""One row's state of lookahead decoding: a window of Jacobi trajectories and the n-grams that came of it."""

from __future__ import annotations

from collections.abc import Sequence


class Ngrams:
    """For every token the `most` n-grams seen last that begin with it."""

    def __init__(self, length: int, most: int) -> None:
        self.length = length
        self.most = most
        self._behind: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, token: int, behind: tuple[int, ...]) -> None:
        """Takes in the tokens behind a token; the oldest n-gram leaves where there are too many."""
        known = self._behind.setdefault(token, {})
        known.pop(behind, None)
        known[behind] = None
        if len(known) > self.most:
            del known[next(iter(known))]

    def add_text(self, text: Sequence[int]) -> None:
        """Takes in every n-gram of a text."""
        for place in range(len(text) - self.length + 1):
            self.add(text[place], tuple(text[place + 1 : place + self.length]))

    def behind(self, token: int) -> list[tuple[int, ...]]:
        """The n-grams that begin with a token, without it, the one seen last first."""
        return list(self._behind.get(token, ()))[::-1]


class Window:
    """Guesses of the next `width` positions, `ngram` - 1 generations of them (Fu et al. 2024, section 3).

    Column i of generation l guesses the token l + i places behind the root. Generation 0 has no column 0: that is the
    root. A forward over the window gives one more generation, and the oldest one leaves.
    """

    def __init__(self, prompt: Sequence[int], *, ngram: int, width: int) -> None:
        # The paper starts with random tokens of the prompt. These are its last ones, again and again: drafting needs
        # no noise of its own then, and a few cycles later they have left the window.
        cells = [prompt[-1 - place % len(prompt)] for place in range((ngram - 1) * width)]
        self._rows = [cells[row * width : (row + 1) * width] for row in range(ngram - 1)]
        self._rows[0] = self._rows[0][1:]

    def paths(self) -> list[list[int]]:
        """Of each column the tokens from below the root to its newest generation."""
        first, *others = self._rows
        return [[*first[:column], *(row[column] for row in others)] for column in range(len(first) + 1)]

    def advance(self, root: int, latest: list[int]) -> list[tuple[int, tuple[int, ...]]]:
        """The n-grams of the columns, (first token, the others), given the newest generation; the oldest one leaves."""
        first, *others = self._rows
        columns = zip([root, *first], *others, latest, strict=True)
        found = [(column[0], column[1:]) for column in columns]
        self._rows = [*others, latest]
        self._rows[0] = self._rows[0][1:]
        return found
