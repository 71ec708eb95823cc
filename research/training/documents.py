"""The document type that every corpus reader yields, and the cleaning that they share."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

KINDS = ("text", "dialogue", "maths", "code")
"""Names of the four kinds of training material, in the order reports list them."""

Message = dict[str, str]

_SPECIAL = re.compile(r"<\|[a-z_]+\|>")
_BLANK_LINES = re.compile(r"\n{3,}")
_FOREIGN = re.compile(r"\b(que|los|las|una|por|como|der|die|und|nicht|les|des|est|pour|dans|nel|che)\b", re.IGNORECASE)
_ENGLISH = re.compile(r"\b(the|of|and|to|a|is|in|you|for|that|it|i)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Document:
    """One training document: either plain ``text`` or a chat made of ``messages``."""

    kind: str
    source: str
    text: str | None = None
    messages: tuple[tuple[str, str], ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the JSON form that the splits hold."""
        out: dict[str, Any] = {"kind": self.kind, "source": self.source}
        if self.text is not None:
            out["text"] = self.text
        else:
            out["messages"] = [{"role": role, "content": content} for role, content in self.messages]
        return out

    def body(self) -> str:
        """Return everything the document says as one string."""
        if self.text is not None:
            return self.text
        return "\n".join(content for _, content in self.messages)

    def key(self) -> str:
        """Return the string whose hash picks the split.

        Several models answer the same prompt in some corpora, so a chat is keyed by its opening message: all
        answers to one prompt land on the same side of the split.
        """
        opening = self.text[:400] if self.text is not None else self.messages[0][1]
        return " ".join(opening.lower().split())


def stable_fraction(key: str) -> float:
    """Map a string to [0, 1) in a way that never changes between runs or machines."""
    digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def clean(text: str) -> str:
    """Normalise line ends, quotes and blank lines, and drop control tokens left in the sources."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").replace("\x00", "")
    text = text.replace("\u2019", "'").replace("\u2018", "'").replace("\u201c", '"').replace("\u201d", '"')
    text = _SPECIAL.sub("", text)
    lines = [line.rstrip() for line in text.split("\n")]
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def is_english(text: str) -> bool:
    """Tell (roughly) whether a passage is English: nearly all ASCII, and more English than other function
    words."""
    sample = text[:3000]
    if not sample:
        return False
    if sum(char.isascii() for char in sample) < 0.97 * len(sample):
        return False
    foreign = len(_FOREIGN.findall(sample))
    return foreign == 0 or len(_ENGLISH.findall(sample)) > 2 * foreign


def chat(kind: str, source: str, turns: list[str], limit: int = 3000) -> Document | None:
    """Build a chat in which user and assistant alternate, or nothing where a turn is empty or the chat too
    long.

    Long chats are cut after the last whole exchange that fits ``limit`` characters.
    """
    cleaned = [clean(turn) for turn in turns]
    kept: list[tuple[str, str]] = []
    size = 0
    for index in range(0, len(cleaned) - 1, 2):
        question, answer = cleaned[index], cleaned[index + 1]
        size += len(question) + len(answer)
        if not question or not answer or size > limit:
            break
        kept += [("user", question), ("assistant", answer)]
    return Document(kind, source, messages=tuple(kept)) if kept else None
