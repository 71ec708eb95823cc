"""The outermost layer of the server: refusals before routing, and the ends of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specframe_serve.errors import ApiError, shutting_down
from specframe_serve.web.access import require_host
from specframe_serve.web.records import RequestRecord

CLOSE = (b"connection", b"close")


class Front:
    """Refuses requests under foreign names and of doubtful length, logs the others, and closes connections whose bodies
    are not read."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        """A front for an app; `hosts` are the names that the Host header may have, None: any."""
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = RequestRecord.of(scope, headers.get("x-request-id"))
        body = Body(receive, pending="transfer-encoding" in headers or headers.get("content-length", "0") != "0")

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                # What is left of a body would be read to its end, or taken for the next request.
                more = [(b"x-request-id", record.id.encode()), *([CLOSE] if body.pending else [])]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        app = self._app
        try:
            require_host(headers, self._hosts)
            if "transfer-encoding" in headers and "content-length" in headers:
                raise ApiError(400, "a request has Content-Length or Transfer-Encoding, not both")
        except ApiError as error:
            app = JSONResponse(error.body, error.status, error.headers)
        try:
            await app(scope, body.receive, closing)
        except asyncio.CancelledError:  # the server ends, and its time to finish has run out
            if record.status is None:
                ended = shutting_down()
                await JSONResponse(ended.body, ended.status)(scope, receive, closing)
        finally:
            record.write()


class Body:
    """The body of a request, as far as it has been received."""

    def __init__(self, receive: Receive, pending: bool) -> None:
        self._receive = receive
        self.pending = pending
        """True while a part of it is still to come."""

    async def receive(self) -> Message:
        """The next message."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.pending = False
        return message
