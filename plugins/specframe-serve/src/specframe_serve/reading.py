"""Streaming of an answer: complete characters without stop texts, split into reasoning, text and calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specframe_serve.tools import ToolForm, partial_length

HALF = "\ufffd"
"""Character that a decoder inserts for an incomplete character."""


class TextStream:
    """The text of one answer, emitted piece by piece; emitted text is never withdrawn.

    Incomplete characters and possible beginnings of a stop text are held back. The pieces together are the text of all
    tokens, cut before the first stop text after the first `least` tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), least: int = 0) -> None:
        self._decode = decode
        self._stops = [stop for stop in stops if stop]
        self._tokens: list[int] = []
        self._read = 0  # number of tokens whose text is in `_text`
        self._start = 0  # first token to decode: a few before `_read`, on which a token's text may depend
        self._text = ""
        self._given = 0  # number of characters emitted
        self._least = least
        self._spared = 0  # number of characters of the first `least` tokens, where no stop text applies
        self.stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """Appends tokens and returns the text that can be emitted."""
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
        """Returns the rest of the text."""
        if self.stopped:
            return ""
        self._text += self._decode(self._tokens[self._start :])[
            len(self._decode(self._tokens[self._start : self._read])) :
        ]
        return self._give(0)

    def _give(self, withheld: int) -> str:
        starts = {stop: max(self._spared, self._given - len(stop)) for stop in self._stops}  # where they may begin
        found = [place for stop, start in starts.items() if (place := self._text.find(stop, start)) >= 0]
        self.stopped = bool(found)
        end = min(found) if found else len(self._text) - withheld
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece


@dataclass(frozen=True)
class AnswerParts:
    """Parts of an answer, or the new portion of each."""

    reasoning: str = ""
    text: str = ""
    calls: Sequence[dict[str, Any]] = ()
    """The calls in the form of OpenAI's API, without ids."""

    def after(self, sent: AnswerParts) -> AnswerParts:
        """Returns the parts that `sent` does not contain."""
        calls = self.calls[len(sent.calls) :]
        return AnswerParts(self.reasoning[len(sent.reasoning) :], self.text[len(sent.text) :], calls)


@dataclass(frozen=True)
class AnswerReader:
    """Splits the text of an answer into its parts."""

    calls: ToolForm | None = None
    """The form of calls; None: the answer has none."""
    tag: str | None = None
    """Name of the tags around the reasoning; None: the answer has none."""
    begun: bool = False
    """True if the prompt ends with the opening tag."""

    @classmethod
    def of(cls, template: str, prompt_end: str, calls: ToolForm | None) -> AnswerReader:
        """Creates the reader of answers to a prompt, with the tags that the chat template uses."""
        found = re.search(r"</((?:seed:)?think(?:ing)?|reasoning)>", template)
        tag = None if found is None else found[1]
        return cls(calls, tag, tag is not None and prompt_end.rstrip().endswith(f"<{tag}>"))

    def read(self, text: str, ended: bool) -> AnswerParts:
        """Returns the parts of an answer; for an incomplete one, the beginnings that further text cannot change."""
        reasoning, rest = self._think(text, ended)
        return AnswerParts(reasoning, *((rest,) if self.calls is None else self.calls.read(rest, ended)))

    def _think(self, text: str, ended: bool) -> tuple[str, str]:
        """Splits a text into the reasoning and the rest."""
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
