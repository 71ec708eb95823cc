"""Replies: one object, or a stream of pieces as they are decoded, with keep-alives in between."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from time import time
from typing import Any

from starlette.responses import StreamingResponse

from specframe_serve.answers import Answer, Answers
from specframe_serve.errors import ApiError


class Form:
    """The form of one reply, in some API."""

    media_type = "text/event-stream"
    """Content type of the stream."""
    waiting = ": waiting\n\n"
    """A comment, which clients skip, so that proxies do not close the connection of a queued request."""

    def __init__(self, model: str) -> None:
        """Creates a reply in the name of the model."""
        self.model, self.id, self.created = model, secrets.token_hex(12), int(time())

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Returns the reply as one object, when all answers are complete."""
        raise NotImplementedError

    def begin(self, answers: Answers) -> str:
        """Returns the beginning of a stream."""
        return ""

    def add(self, answers: Answers, answer: Answer) -> str:
        """Returns the part of a stream for an answer's new piece."""
        raise NotImplementedError

    def end(self, answers: Answers) -> str:
        """Returns the end of a stream."""
        raise NotImplementedError

    def error(self, error: ApiError) -> str:
        """Returns the part that ends a stream with an error, since the status has already been sent."""
        return event(error.body)


class EventStream(StreamingResponse):
    """A streamed reply that cancels its rows when it ends for any reason."""

    def __init__(self, answers: Answers, form: Form, headers: Mapping[str, str]) -> None:
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # makes nginx send each event at once
        super().__init__(self._parts(form), media_type=form.media_type, headers=own | dict(headers))
        self._answers = answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()

    async def _parts(self, form: Form) -> AsyncIterator[str]:
        try:
            yield form.begin(self._answers)
            async for answer in self._answers.pieces():
                if part := form.waiting if answer is None else form.add(self._answers, answer):
                    yield part
            yield form.end(self._answers)
        except ApiError as error:
            yield form.error(error)


def event(data: dict[str, Any], name: str | None = None) -> str:
    """Returns a server-sent event, with a name if one is given."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"
