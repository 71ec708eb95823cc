"""Access control: answers clients that send the key, under a name that is this server's."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers

from specframe_serve.errors import ApiError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names of this machine to itself."""


def is_loopback(host: str) -> bool:
    """Returns whether a name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def hosts_for(host: str, key: str | None) -> frozenset[str] | None:
    """The names that the Host header may have on a server that listens on `host`; None: any.

    A web page may have its own name point to this machine (DNS rebinding) and would then read answers as its own; the
    key keeps it out as well, and a server that is reached from elsewhere has names that it does not know.
    """
    return LOOPBACK | {host.lower()} if key is None and is_loopback(host) else None


def require_host(headers: Headers, known: Iterable[str] | None) -> None:
    """Raises ApiError unless the Host header, where there is one, has a known name."""
    given = headers.get("host")
    if known is None or given is None:
        return
    name = given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]
    if name.lower() not in known:
        raise ApiError(403, "this server does not go by the name in the Host header; see --host", code="unknown_host")


def require_key(headers: Headers, key: str | None) -> None:
    """Raises ApiError unless the key, where there is one, is the bearer token; the scheme's case does not matter."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    sent = given.strip().encode("latin-1")  # as it was on the wire
    if key is None or (scheme.lower() == "bearer" and hmac.compare_digest(sent, key.encode())):
        return
    raise ApiError(
        401,
        "this server wants its key as bearer token",
        kind="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
