"""Text that each token adds, given its context. A token alone may be half a character or lose its leading space."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

REACH = 4
"""Number of context tokens that determine the text a token adds: a character has at most four bytes."""
HALF = "\ufffd"
"""Character that tokenizers emit for an incomplete sequence of bytes."""

MARKS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


class Wording:
    """Text of tokens in context; their ids if there is no tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def after(self, context: Sequence[int], token: int) -> str:
        """Returns the text that the token adds after these tokens; `HALF` if it is only part of a character."""
        if self._tokenizer is None:
            return str(token)
        near = list(context[-REACH:])
        return added(self._decode(near), self._decode([*near, token]))

    def pieces(self, context: Sequence[int], tokens: Sequence[int]) -> list[str]:
        """Returns the text that each token adds after these tokens; joined, the pieces are the whole text.

        A character that spans several tokens is added by the last of them; the others add an empty string.
        """
        if self._tokenizer is None:
            return [f" {token}" for token in tokens]
        everything = [*context[-REACH:], *tokens]
        first = len(everything) - len(tokens)
        start, done = 0, first  # the text before `done` has been decoded, starting from `start`
        pieces = []
        for end in range(first + 1, len(everything) + 1):
            before, whole = self._decode(everything[start:done]), self._decode(everything[start:end])
            last = end == len(everything)
            if whole.endswith(HALF) and not last and end - done < REACH:
                pieces.append("")
                continue
            pieces.append(added(before, whole))
            start, done = max(0, done - REACH), end
        return pieces

    def _decode(self, tokens: Sequence[int]) -> str:
        if not tokens:
            return ""
        decoded = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(decoded)


def added(before: str, whole: str) -> str:
    """Returns the part of `whole` after its common beginning with `before`, which may end in half a character."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False)))
    return whole[same:]


def visible(text: str, token: int) -> str:
    """Returns the text of one token with whitespace and control characters made visible; `#id` if it has no text."""
    return "".join(MARKS.get(c, c) for c in escape_controls(text)) or f"#{token}"


def escape_controls(text: str) -> str:
    r"""Returns the text with characters that control a terminal or a page escaped as `\u202e`; whitespace is kept."""
    return UNSEEN.sub(lambda found: found[0] if found[0] in MARKS else f"\\u{ord(found[0]):04x}", text)


def probability(value: float) -> str:
    """Formats a probability with two digits: only exact values print as 0 and 1; values near them as <.01 and >.99."""
    if value in (0, 1):
        return f"{value:.0f}"
    if value < 0.005:
        return "<.01"
    return ">.99" if value >= 0.995 else f"{value:.2f}"[1:]
