"""Connections: their maximum number, and the time until a request must be complete."""

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

from specframe_serve.web.front import SPARE

log = logging.getLogger("specframe.serve")

QUIET = 60.0
"""Seconds between two log lines about refused connections."""
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
SPARES = 128
"""Connections beyond the limit that may still send a request, as many do when clients reconnect. A further one resets
the oldest.
"""


@dataclass
class Limits:
    """Limits of a server's connections."""

    most: int
    """Maximum number of open connections."""
    headers: float = 10.0
    """Seconds for the first line and headers of a request."""
    patience: float = 2.0
    """Seconds for them on a connection beyond the limit."""
    logged: float = field(default=-QUIET, init=False)
    spares: dict[Connection, None] = field(default_factory=dict, init=False)
    """Connections beyond the limit, oldest first."""

    def report(self) -> None:
        """Logs that a connection was refused, at most once in `QUIET` seconds."""
        if monotonic() - self.logged >= QUIET:
            self.logged = monotonic()
            log.warning("%d connections are open, as many as --connections allows; more are refused", self.most)


class Connection(H11Protocol):
    """A uvicorn connection that is closed if headers do not arrive; beyond the limit, only /health is served."""

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts the connection; if too many are beyond the limit, it replaces the oldest of them."""
        spares = self._limits.spares
        if len(self.connections) - len(spares) >= self._limits.most:
            self._limits.report()
            if len(spares) >= SPARES:
                next(iter(spares)).transport.abort()
                spares.pop(next(iter(spares)))
            spares[self] = None
            self.app_state = {**self.app_state, SPARE: True}
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Receives data; the deadline applies until a request's headers are complete, and again to the next request."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect()
        else:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the connection."""
        self._relax()
        self._limits.spares.pop(self, None)
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._deadline is None:
            spare = self in self._limits.spares
            wait = self._limits.patience if spare else self._limits.headers
            self._deadline = self.loop.call_later(wait, self._refuse if spare else self.transport.abort)

    def _refuse(self) -> None:
        self.transport.write(REFUSAL)
        self.transport.close()

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
