"""Replies of an endpoint, parsed without trusting any field."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from specframe.plugin import printable
from specframe_distill.dialogue import DialogueAnswer

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may be temporary."""
OF_THE_PROMPT = frozenset({400, 413, 422})
"""HTTP statuses that may concern only this prompt."""
LONGEST_MESSAGE = 300


class Passing(Exception):
    """A failure that may be temporary; `after` is the wait in seconds if the server gives one."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Refusal(Exception):
    """A prompt that gets no answer, with the server's reason."""


class Unusable(Exception):
    """An endpoint that answers no prompt."""


@dataclass(frozen=True)
class EndpointReply:
    """A reply as received."""

    status: int
    content: bytes
    retry_after: str = ""


def read_answer(reply: EndpointReply, chat: bool) -> DialogueAnswer:
    """Returns the answer in a reply.

    Raises Passing, Refusal or Unusable, with the server's message, if there is none.
    """
    if reply.status != 200:
        reason = read_reason(reply)
        if reply.status in PASSING:
            raise Passing(f"HTTP {reply.status}: {reason}", seconds(reply.retry_after))
        if reply.status in OF_THE_PROMPT:
            raise Refusal("too long" if is_too_long(reply.status, reason) else f"HTTP {reply.status}: {reason}")
        raise Unusable(f"HTTP {reply.status}: {reason}")
    try:
        found = json.loads(reply.content)
    except (ValueError, RecursionError) as error:  # truncated, a proxy's error page, or nested too deeply
        raise Passing(f"a reply that is no JSON: {one_line(repr(reply.content[:60])[1:])}") from error
    if isinstance(found, dict) and found.get("error") and not found.get("choices"):
        raise Passing(f"an error: {read_reason(reply)}")
    try:
        choice = found["choices"][0]
        text = as_text(choice["message"]["content"] if chat else choice["text"])
        finished = choice.get("finish_reason") == "stop"
    except (LookupError, TypeError, AttributeError) as error:
        raise Refusal("a reply without a text; is it OpenAI-compatible?") from error
    return DialogueAnswer(text, as_count(found.get("usage")), finished)


def as_text(content: Any) -> str:
    """Returns the text of an answer, joined from its parts. Raises TypeError if it is no text."""
    if isinstance(content, list):
        content = "".join(as_text(part.get("text")) for part in content)
    if not isinstance(content, str | None):
        raise TypeError(content)
    return (content or "").encode("utf-8", "replace").decode()  # half of a surrogate pair is not valid text


def as_count(usage: Any) -> int | None:
    """Returns the number of tokens of an answer, or None if the reply has no plain number."""
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int and 0 <= count < 2**31 else None


def seconds(retry_after: str) -> float | None:
    """Returns the seconds to wait by a Retry-After header; None for a date or nonsense."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*", retry_after, re.ASCII)
    return float(found[1]) if found else None


def is_too_long(status: int, message: str) -> bool:
    """Returns whether a refusal means that prompt and budget exceed the context, in any server's wording."""
    words = message.lower()
    return status in OF_THE_PROMPT and "context" in words and any(w in words for w in ("length", "size", "window"))


def read_reason(reply: EndpointReply) -> str:
    """Returns the first line of the server's message, or the name of the status."""
    text = ""
    try:
        content = json.loads(reply.content)
        found = content.get("error", content.get("detail", content)) if isinstance(content, dict) else content
        found = found.get("message", found) if isinstance(found, dict) else found
        text = str(found) if found else ""
    except (ValueError, RecursionError):
        pass
    return one_line(text) or (HTTPStatus(reply.status).phrase if reply.status in set(HTTPStatus) else "no reason given")


def one_line(text: str) -> str:
    """Returns the beginning of a text's first line, safe to print."""
    return printable((text.strip().splitlines() or [""])[0][:LONGEST_MESSAGE])
