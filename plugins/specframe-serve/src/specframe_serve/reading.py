"""The parts of an answer: reasoning, text, and calls of functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specframe_serve.text import held
from specframe_serve.tools import ToolForm


@dataclass(frozen=True)
class AnswerParts:
    """The parts of an answer, or what is new in them."""

    reasoning: str = ""
    text: str = ""
    calls: Sequence[dict[str, Any]] = ()
    """The calls as OpenAI's API has them, without their ids."""

    def after(self, sent: AnswerParts) -> AnswerParts:
        """The parts that are not among those that were sent."""
        return AnswerParts(
            self.reasoning[len(sent.reasoning) :], self.text[len(sent.text) :], self.calls[len(sent.calls) :]
        )


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
        return (
            AnswerParts(reasoning, rest)
            if self.calls is None
            else AnswerParts(reasoning, *self.calls.read(rest, ended))
        )

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
            thought = thought[: len(thought) - held(thought, end)]
        return thought.strip(), rest.lstrip()
