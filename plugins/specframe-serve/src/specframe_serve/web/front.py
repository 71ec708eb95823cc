"""The outermost layer of the server: refusals before routing, and the end of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specframe_serve.errors import ApiError, shutting_down
from specframe_serve.web.access import require_host
from specframe_serve.web.records import HEALTH, RequestRecord

CLOSE = (b"connection", b"close")
SPARE = "specframe.spare"
"""Key in a request's state that marks a connection beyond the limit."""
LITTLE = 1 << 16
"""Number of bytes of a body that are read on a connection beyond the limit, so that its client reads the refusal
instead of a reset.
"""


class Front:
    """Refuses requests with unknown host names, ambiguous lengths or beyond the limit, logs the others, and closes
    connections whose bodies are not read.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        """Creates a front for an app; `hosts` are the accepted names in the Host header, None: any."""
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request or passes it on; on a connection beyond the limit, it passes on only probes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = RequestRecord.of(scope, headers.get("x-request-id"))
        spare = SPARE in scope.get("state", ())
        pending = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"

        async def receiving() -> Message:
            nonlocal pending
            message = await receive()
            pending = pending and message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                # The rest of a body would be read to its end, or parsed as the next request.
                more = [(b"x-request-id", record.id.encode()), *([CLOSE] if pending or spare else [])]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        app = self._app
        try:
            require_host(headers, self._hosts)
            if "transfer-encoding" in headers and "content-length" in headers:
                raise ApiError(400, "a request has Content-Length or Transfer-Encoding, not both")
            if spare and scope["path"] not in HEALTH:
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        left = LITTLE
                        while pending and left > 0:
                            left -= len((await receiving()).get("body", b""))
                text, wait = "all connections are in use", {"Retry-After": "1"}
                raise ApiError(503, text, kind="server_error", code="too_many_connections", headers=wait)
        except ApiError as error:
            app = JSONResponse(error.body, error.status, error.headers)
        try:
            await app(scope, receiving, closing)
        except asyncio.CancelledError:  # the server ends, and the time to finish is over
            if record.status is None:
                ended = shutting_down()
                await JSONResponse(ended.body, ended.status)(scope, receive, closing)
        finally:
            record.write()
