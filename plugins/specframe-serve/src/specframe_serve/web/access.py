"""Access control: only clients that send the key, under a known host name, are answered."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.datastructures import Headers

from specframe import InputError
from specframe_serve.errors import ApiError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of the machine for itself."""


def is_loopback(host: str) -> bool:
    """Returns whether a name or address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def hosts_for(host: str, locked: bool) -> frozenset[str] | None:
    """Returns the accepted Host names of a server that listens on `host`, `locked` by a key; None: any.

    A web page can let its name resolve to this machine (DNS rebinding) and would then read answers as its own. A key
    also prevents this, and a server that is reached from other machines cannot know all its names.
    """
    return LOOPBACK | {host.lower()} if is_loopback(host) and not locked else None


def require_host(headers: Headers, known: Iterable[str] | None) -> None:
    """Raises ApiError if the Host header is present and not a known name."""
    given = headers.get("host")
    if known is None or given is None:
        return
    name = given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]
    if name.lower() not in known:
        raise ApiError(403, "this server does not go by the name in the Host header; see --host", code="unknown_host")


def require_key(headers: Headers, keys: Mapping[str, str]) -> str:
    """Returns the name of the client whose key is the bearer token; "" for the server's key, or without keys.

    The scheme's case does not matter. Raises ApiError for any other token.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    sent = given.strip().encode("latin-1")  # the bytes as sent
    found = [name for name, own in keys.items() if hmac.compare_digest(sent, own.encode())]
    if not keys or (scheme.lower() == "bearer" and found):
        return found[0] if keys else ""
    wanted, form = "this server wants its key as bearer token", {"WWW-Authenticate": "Bearer"}
    raise ApiError(401, wanted, kind="authentication_error", code="invalid_api_key", headers=form)


def read_keys(path: Path) -> dict[str, str]:
    """Reads keys by client name from lines `NAME KEY`. Raises InputError for another format."""
    try:
        pairs = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError) as error:
        raise InputError(f"--keys {path}: {error}") from None
    if not pairs or any(len(pair) != 2 for pair in pairs) or len({name for name, *_ in pairs}) < len(pairs):
        raise InputError(f"--keys {path}: a name and a key a line, each name once")
    return {pair[0]: pair[1] for pair in pairs}
