"""Connections: how many there may be, and how long one may be silent before its request is there."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

log = logging.getLogger("specframe.serve")

QUIET = 60.0
"""Seconds between two log lines on refused connections."""
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Limits:
    """The limits of a server's connections."""

    most: int
    """Connections that are open at a time."""
    headers: float = 10.0
    """Seconds for a request's first line and headers."""
    logged: float = field(default=-QUIET, init=False)

    def report(self) -> None:
        """Logs that a connection was refused, once in a while."""
        if monotonic() - self.logged >= QUIET:
            self.logged = monotonic()
            log.warning("%d connections are open, as many as --connections allows; more are refused", self.most)


class Connection(H11Protocol):
    """A connection of uvicorn's, refused beyond the limit and closed where the headers do not come."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes the connection, or refuses it."""
        if len(self.connections) >= self._limits.most:
            self._refused = True
            self._limits.report()
            transport.write(REFUSAL)
            transport.close()
            return
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Takes data; the deadline holds until a request's headers are complete, and again with the next request."""
        if self._refused:
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect()
        else:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._relax()
        if not self._refused:
            super().connection_lost(exc)

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.headers, self.transport.abort)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
