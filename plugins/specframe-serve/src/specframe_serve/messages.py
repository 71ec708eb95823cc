"""Turns of a conversation as they appear in requests."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag, model_validator

from specframe_serve.errors import invalid
from specframe_serve.structured import Strict
from specframe_serve.tools import TOOLS, ToolCall

PROMPTS = 4096
"""Maximum number of prompts or messages of one request."""

DATA = re.compile(r"data:image/[\w.+-]+;base64,", re.ASCII)
"""Matches the beginning of an image's data URL."""
Empty = Annotated[list[Any], Field(max_length=0)]
Each = TypeVar("Each")
Many = Annotated[list[Each], Field(fail_fast=True, max_length=PROMPTS)]
"""Prompts, messages or their parts."""


class TextPart(Strict):
    """A text part of a message; audio and video are refused."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    cache_control: dict[str, Any] | None = None
    annotations: Empty | None = None
    logprobs: Empty | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """Returns the part in the form of chat templates."""
        return {"type": "text", "text": self.text}


Texts = str | Many[TextPart]
"""A text, or its parts."""


def joined(texts: Texts) -> str:
    """Joins the texts of parts."""
    return texts if isinstance(texts, str) else "".join(part.text for part in texts)


class ImageURL(Strict):
    """The location of an image: a data URL, which contains it."""

    url: str
    detail: Literal["auto"] | None = None


class ImagePart(Strict):
    """An image in a message; the Responses API gives its URL without the nested object."""

    type: Literal["image_url", "input_image"]
    image_url: ImageURL | str
    detail: Literal["auto"] | None = None
    file_id: None = None

    @property
    def shown(self) -> dict[str, Any]:
        """Returns the part in the form of chat templates, with its bytes. Raises ApiError if the URL lacks them."""
        url = self.image_url if isinstance(self.image_url, str) else self.image_url.url
        return {"type": "image", "image": image_of(url)}


def image_of(url: str) -> bytes:
    """Returns the bytes in a data URL. Raises ApiError for other URLs: the server fetches nothing, opens no files."""
    start = DATA.match(url)
    why = "the server fetches nothing: give the image in a data URL, data:image/png;base64,..."
    if start is not None:
        with suppress(ValueError):
            return b64decode(url[start.end() :], validate=True)
        why = "what follows base64, in the data URL is not in base64"
    raise invalid("image_url", why, 400)


def tagger(kinds: Mapping[str, str], default: str) -> Callable[[Any], str]:
    """Returns a function that names a part or an item by its `type`: one of `kinds`, otherwise `default`."""

    def name(part: Any) -> str:
        kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
        return kinds.get(str(kind), default)

    return name


Part = Annotated[  # tags are not field names
    Annotated[TextPart, Tag("a text")] | Annotated[ImagePart, Tag("an image")],
    Discriminator(tagger({"image_url": "an image", "input_image": "an image"}, "a text")),
]


class Message(Strict):
    """A turn of a conversation, as a client wrote it or as OpenAI's client returns an answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Many[Part] = ""
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    cache_control: dict[str, Any] | None = None
    annotations: Empty | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=TOOLS)] = Field(default_factory=list)
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if "content" not in self.model_fields_set and not self.tool_calls:
            raise ValueError("a message has a content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls are an assistant's")
        return self

    @property
    def turn(self) -> dict[str, Any]:
        """Returns the turn in the form of chat templates; with an image, its content is a list of parts."""
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self._content}
        calls = [call.call for call in self.tool_calls] or None
        given = {"name": self.name, "tool_calls": calls, "tool_call_id": self.tool_call_id}
        given["reasoning_content"] = self.reasoning_content or self.reasoning
        return turn | {name: value for name, value in given.items() if value is not None}

    @property
    def _content(self) -> str | list[dict[str, Any]]:
        if isinstance(self.content, str):
            return self.content
        shown = [part.shown for part in self.content]
        return shown if any("image" in part for part in shown) else "".join(part["text"] for part in shown)
