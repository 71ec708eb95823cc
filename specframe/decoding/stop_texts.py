"""Stop texts: texts at which a row ends, special tokens' own among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.decoding.requests import Entry

SPARE = 8
"""Tokens examined beyond one for each character of a stop text, since characters may be split among tokens."""


class StopTexts:
    """Test whether a row's new text has one of these in it, as it is shown or with its special tokens.

    transformers' `stop_strings` match a special token's own text, such as `<|im_end|>`, which no shown text has.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        """The test for these texts, over a tokenizer of transformers."""
        self._texts = tuple(texts)
        self._tokenizer = tokenizer
        self._special = frozenset(number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._reach = max(map(len, texts)) + SPARE

    def __call__(self, entry: Entry) -> bool:
        """Returns whether the latest token completes a stop text: it can span tokens, so the tail is examined."""
        tail = entry.tokens[-self._reach :]
        shown = str(self._tokenizer.decode(tail, skip_special_tokens=True))
        if any(text in shown for text in self._texts):
            return True
        if self._special.isdisjoint(tail):
            return False
        whole = str(self._tokenizer.decode(tail, skip_special_tokens=False))
        return any(text in whole for text in self._texts)
