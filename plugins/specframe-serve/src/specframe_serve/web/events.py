"""Streams: what goes out while an answer is being made, and a sign of life while nothing does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from starlette.responses import StreamingResponse

from specframe_serve.answers import Answers
from specframe_serve.errors import ApiError

WAITING = ": waiting\n\n"
"""A comment, which clients skip, so that proxies do not take a queued request for a dead one."""


class Form(Protocol):
    """The form of a reply, as one object or as a stream."""

    @property
    def media_type(self) -> str:
        """The stream's."""
        ...

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object, when all answers are done."""
        ...

    def stream(self, answers: Answers) -> AsyncIterator[str]:
        """The parts of a stream, as the answers come. Raises ApiError when a row failed."""
        ...

    def error(self, error: ApiError) -> str:
        """The part of a stream that ends it with an error: the status has been sent already."""
        ...


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
            async for part in form.stream(self._answers):
                yield part
        except ApiError as error:
            yield form.error(error)


def event(data: dict[str, Any], name: str | None = None) -> str:
    """A server-sent event, with its name where it has one."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"
