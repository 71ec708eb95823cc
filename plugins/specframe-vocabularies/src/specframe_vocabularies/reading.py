"""What the target wrote, as a drafter of another vocabulary reads it."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from specframe_vocabularies.vocabulary import Vocabulary

WINDOW = 8
"""So many of the last tokens may be cut anew when more text follows."""


class Reading:
    """A row's text in the drafter's tokens: its prompt, then what was generated.

    The text is cut into the drafter's own tokens as it would be as a whole, whatever tokens the target made it of. So
    the last of them may change when more follows. The first bytes of a character that is not complete yet wait.
    """

    def __init__(
        self, drafter: Vocabulary, target: Vocabulary, prompt: Sequence[int], replace: Mapping[str, str]
    ) -> None:
        self.generated: list[int] = []
        """What the target generated, in its own tokens."""
        self._drafter = drafter
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._tokens: list[int] = []
        self._starts: list[int] = []
        filler = drafter.end or 0
        self._prompt = drafter.encode_prompt(as_text(prompt, target, drafter, replace)) or [filler]
        if len(self._prompt) < 2:
            self._prompt.insert(0, filler)  # a commit has at least two tokens, the root among them

    @property
    def tokens(self) -> list[int]:
        """The whole text in the drafter's tokens, at least two."""
        return [*self._prompt, *self._tokens]

    @property
    def complete(self) -> bool:
        """Whether the text ends with a whole character."""
        return not self._decoder.getstate()[0]

    def write(self, tokens: Sequence[int]) -> int:
        """Appends tokens of the target; how many of the drafter's tokens stay as they are."""
        self.generated.extend(tokens)
        self._text += self._decoder.decode(self._target.write(tokens))
        first = self._cut()
        start = self._starts[first] if first < len(self._starts) else 0
        tokens, starts = self._drafter.encode(self._text[start:])
        same = first
        while same < len(self._tokens) and same - first < len(tokens) and self._tokens[same] == tokens[same - first]:
            same += 1
        self._tokens[first:] = tokens
        self._starts[first:] = [start + each for each in starts]
        return len(self._prompt) + same

    def _cut(self) -> int:
        """The first token that may change: the last but `WINDOW`, or one before it that begins a word."""
        for place in range(len(self._tokens) - WINDOW, 0, -1):
            start = self._starts[place]
            if self._text[start].isspace() and not self._text[start - 1].isspace() and self._starts[place - 1] < start:
                return place
        return 0


def as_text(prompt: Sequence[int], target: Vocabulary, drafter: Vocabulary, replace: Mapping[str, str]) -> str:
    """A prompt in the target's tokens as text for the drafter, with these replacements, made in order.

    Special tokens that the drafter has not are left out after that.
    """
    names = {number: name for name, number in target.special.items()}
    text, start = "", 0
    for place, token in enumerate([*prompt, -1]):
        if token in names or token == -1:
            text += target.write(prompt[start:place]).decode(errors="replace") + names.get(token, "")
            start = place + 1
    for old, new in replace.items():
        text = text.replace(old, new)
    for name in target.special.keys() - drafter.special.keys():
        text = text.replace(name, "")
    return text
