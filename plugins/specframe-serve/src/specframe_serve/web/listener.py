"""The web server around the endpoint: listens, drains at a signal, and ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from functools import partial
from types import FrameType

import uvicorn

from specframe import InputError
from specframe_serve.app import Server
from specframe_serve.settings import ServeSettings
from specframe_serve.web.access import is_loopback
from specframe_serve.web.connections import Connection, Limits

BACKLOG = 128
"""Number of connections that may wait to be accepted."""
KEPT = 30
"""Seconds that a connection stays open without a request; longer than refused clients wait."""
FILES = 256
"""Number of open files in addition to connections: weights, libraries, pipes."""
GRACE = 5.0
"""Seconds for clients to receive their last answers after the time to finish them is over."""


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on host and port. Raises InputError if it cannot."""
    try:
        if not 0 <= port <= 65535:
            raise OSError("a port is a number from 0 to 65535")
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen on {host} port {port}: {reason}") from error


def warn_if_open(host: str, settings: ServeSettings) -> None:
    """Prints a warning for a server without a key that other machines can reach."""
    if not settings.keys and not is_loopback(host):
        warning = f"anyone who reaches {host} can use this server; set SPECFRAME_SERVE_KEY"
        print(f"specframe: warning: {warning}", file=sys.stderr, flush=True)


def run(server: Server, listener: socket.socket, greeting: str) -> None:
    """Prints the greeting and serves until SIGTERM or Ctrl-C.

    Requests in progress may finish within the drain time; a second signal ends that time.
    """
    allow_files(server.settings.connections + BACKLOG + FILES)
    web = Web(web_config(server), server)
    for number in (signal.SIGTERM, signal.SIGINT):  # before the greeting, after which signals may arrive
        signal.signal(number, web.handle_exit)
    print(greeting, flush=True)
    web.run(sockets=[listener])
    server.engine.give_up()  # if uvicorn ended without draining
    server.engine.close()  # a computing thread must not outlive the interpreter


def web_config(server: Server, limits: Limits | None = None) -> uvicorn.Config:
    """Returns uvicorn's configuration for the endpoint, by default with the limits of its settings."""
    protocol = partial(Connection, limits=limits or Limits(server.settings.connections))
    return uvicorn.Config(
        server.app,
        http=protocol,  # type: ignore[arg-type]
        ws="none",
        log_level="error",
        access_log=False,
        lifespan="on",
        backlog=BACKLOG,
        timeout_keep_alive=KEPT,
    )


class Web(uvicorn.Server):
    """A uvicorn server that ends late requests with an answer rather than an error."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self._hurry = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Starts to drain; a second signal ends draining."""
        if self.should_exit:
            self._hurry = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains for as long as the settings allow."""
        drained = asyncio.ensure_future(super().shutdown(sockets))
        hurried = asyncio.ensure_future(self._hurried())
        await asyncio.wait({drained, hurried}, timeout=self._server.settings.drain, return_when="FIRST_COMPLETED")
        hurried.cancel()
        if not drained.done():
            self._server.engine.give_up()
            await asyncio.wait({drained}, timeout=GRACE)
            self.force_exit = True  # some clients do not receive their answers
        await drained

    async def _hurried(self) -> None:
        while not self._hurry:  # set by a signal handler, which does not wake the event loop
            await asyncio.sleep(0.05)


def allow_files(count: int) -> None:
    """Raises the limit on open files to `count`, or as far as permitted, on systems with such a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
