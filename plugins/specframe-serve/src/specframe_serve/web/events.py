"""Replies: an object, or a stream that goes out while answers are being made, with signs of life while nothing does."""

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
    """The stream's."""
    waiting = ": waiting\n\n"
    """A comment, which clients skip, so that proxies do not take a queued request for a dead one."""

    def __init__(self, model: str) -> None:
        """The form of a reply by a model of that name."""
        self.model, self.id, self.created = model, secrets.token_hex(12), int(time())

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object, when all answers are done."""
        raise NotImplementedError

    def begin(self, answers: Answers) -> str:
        """The beginning of a stream."""
        return ""

    def add(self, answers: Answers, answer: Answer) -> str:
        """The part of a stream that an answer's new piece is."""
        raise NotImplementedError

    def end(self, answers: Answers) -> str:
        """The end of a stream."""
        raise NotImplementedError

    def error(self, error: ApiError) -> str:
        """The part of a stream that ends it with an error: the status has been sent already."""
        return event(error.body)


class EventStream(StreamingResponse):
    """A streamed reply whose rows are given up when it ends, however that happens."""

    def __init__(self, answers: Answers, form: Form, headers: Mapping[str, str]) -> None:
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx sends each event at once
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
    """A server-sent event, with its name where it has one."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"
