"""Tokens to text as they come: whole characters, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

HALF = "\ufffd"
"""Character that a decoder inserts for the bytes of half a character."""


class TextStream:
    """The text of one answer, emitted piece by piece; emitted text is never taken back.

    Half characters and possible beginnings of a stop text are held back. The pieces together are the text of all
    tokens, cut before the first stop text after the first `least` tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), least: int = 0) -> None:
        self._decode = decode
        self._stops = [stop for stop in stops if stop]
        self._tokens: list[int] = []
        self._read = 0  # tokens whose text is in `_text`
        self._start = 0  # tokens before it are left out of decoding; a few before `_read`, as a piece may join them
        self._text = ""
        self._given = 0  # characters given out
        self._least = least
        self._spared = 0  # characters of the first `least` tokens, which no stop text ends
        self.stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """The text that can be given out now that these tokens came."""
        spared = max(self._least - len(self._tokens), 0)
        if 0 < spared < len(tokens):
            return self.add(tokens[:spared]) + self.add(tokens[spared:])
        if self.stopped:
            return ""
        self._tokens += tokens
        known = self._decode(self._tokens[self._start : self._read])
        longer = self._decode(self._tokens[self._start :])
        if len(longer) <= len(known) or longer.endswith(HALF):
            return ""
        self._text += longer[len(known) :]
        self._start, self._read = self._read, len(self._tokens)
        if self._read <= self._least:
            self._spared = len(self._text)
        return self._give(max((held(self._text, stop) for stop in self._stops), default=0))

    def finish(self) -> str:
        """The rest of the text."""
        if self.stopped:
            return ""
        self._text += self._decode(self._tokens[self._start :])[
            len(self._decode(self._tokens[self._start : self._read])) :
        ]
        return self._give(0)

    def _give(self, held: int) -> str:
        starts = {stop: max(self._spared, self._given - len(stop)) for stop in self._stops}  # of unfinished stop texts
        found = [place for stop, start in starts.items() if (place := self._text.find(stop, start)) >= 0]
        self.stopped = bool(found)
        end = min(found) if found else len(self._text) - held
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece


def held(text: str, end: str) -> int:
    """Returns the number of last characters of a text that may begin a stop text or a tag."""
    return next((size for size in range(len(end) - 1, 0, -1) if text.endswith(end[:size])), 0)
