"""An answer as it comes: whole characters, nothing of a stop text; and its parts: reasoning, text, calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specframe_serve.tools import ToolForm, partial_length

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
        return self._give(max((partial_length(self._text, stop) for stop in self._stops), default=0))

    def finish(self) -> str:
        """The rest of the text."""
        if self.stopped:
            return ""
        self._text += self._decode(self._tokens[self._start :])[
            len(self._decode(self._tokens[self._start : self._read])) :
        ]
        return self._give(0)

    def _give(self, withheld: int) -> str:
        starts = {stop: max(self._spared, self._given - len(stop)) for stop in self._stops}  # of unfinished stop texts
        found = [place for stop, start in starts.items() if (place := self._text.find(stop, start)) >= 0]
        self.stopped = bool(found)
        end = min(found) if found else len(self._text) - withheld
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece


@dataclass(frozen=True)
class AnswerParts:
    """The parts of an answer, or what is new in them."""

    reasoning: str = ""
    text: str = ""
    calls: Sequence[dict[str, Any]] = ()
    """The calls as OpenAI's API has them, without their ids."""

    def after(self, sent: AnswerParts) -> AnswerParts:
        """The parts that are not among those that were sent."""
        calls = self.calls[len(sent.calls) :]
        return AnswerParts(self.reasoning[len(sent.reasoning) :], self.text[len(sent.text) :], calls)


@dataclass(frozen=True)
class AnswerReader:
    """Finds the parts in the text of an answer."""

    calls: ToolForm | None = None
    """The form of calls; None: the answer has none."""
    tag: str | None = None
    """The name of the tags around the reasoning; None: the answer has none."""
    begun: bool = False
    """True if the opening tag is the end of the prompt."""

    @classmethod
    def of(cls, template: str, prompt_end: str, calls: ToolForm | None) -> AnswerReader:
        """The reader of answers to a prompt, with the tags that the chat template has."""
        found = re.search(r"</((?:seed:)?think(?:ing)?|reasoning)>", template)
        tag = None if found is None else found[1]
        return cls(calls, tag, tag is not None and prompt_end.rstrip().endswith(f"<{tag}>"))

    def read(self, text: str, ended: bool) -> AnswerParts:
        """The parts of an answer; of one that goes on, the beginnings that stay whatever follows."""
        reasoning, rest = self._think(text, ended)
        return AnswerParts(reasoning, *((rest,) if self.calls is None else self.calls.read(rest, ended)))

    def _think(self, text: str, ended: bool) -> tuple[str, str]:
        """The reasoning, and the rest."""
        if self.tag is None:
            return "", text
        start, end = f"<{self.tag}>", f"</{self.tag}>"
        thought = text
        if not self.begun:
            thought = text.lstrip()
            if not thought.startswith(start):
                return "", "" if not ended and start.startswith(thought) else text
            thought = thought.removeprefix(start)
        thought, closed, rest = thought.partition(end)
        if not closed and not ended:
            thought = thought[: len(thought) - partial_length(thought, end)]
        return thought.strip(), rest.lstrip()
