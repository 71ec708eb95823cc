"""Settings of the server: address, capacity and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from specframe import InputError


def limit(default: Any, metavar: str | None, text: str) -> Any:
    """Declares a field that is also an option of the command, with its help."""
    return field(default=default, metadata={"metavar": metavar, "help": text})


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Limits of a server. Raises InputError for limits under which nothing can be served."""

    name: str
    """Name of the model that clients send."""
    slots: int = limit(8, "N", "rows decoded together")
    queue: int = limit(64, "N", "rows that may wait; further ones get status 429")
    context: int = limit(4096, "N", "tokens of a row, prompt and answer together; the target's where that is less")
    prefill: int = limit(512, "N", "prompt tokens to process between two cycles; longer ones are read in pieces")
    piece: int | None = limit(None, "N", "of a longer prompt (default: 64 on a CPU)")
    cache: int = limit(512, "MB", "texts kept so that their beginnings need not be read again; 0: none")
    timeout: float = limit(600.0, "S", "seconds that a request may take")
    body: int = limit(1 << 20, "BYTES", "size of a request's body, at most")
    drain: float = limit(60.0, "S", "seconds to finish running requests at shutdown")
    connections: int = limit(256, "N", "connections that are open at a time")
    prompt_details: bool = limit(False, None, "report the prompt tokens that came from the prefix cache")
    strict_schemas: bool = limit(False, None, "refuse JSON schemas with keywords that would be ignored")
    to_end: bool = False
    """True if answers without a token limit may continue to the end of the context."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Bearer tokens by client name; clients must send one. Every client name has a separate prefix cache."""
    hosts: frozenset[str] | None = None
    """Accepted names in the Host header; None: any."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may send requests; `*` is any."""

    def __post_init__(self) -> None:
        for name in ("slots", "queue", "context", "prefill", "piece", "body", "connections"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name} {value} serves nothing; use 1 or more")
        if self.cache < 0:
            raise InputError(f"--cache {self.cache} is no size; use 0 or more megabytes")
        if not self.timeout > 0:
            raise InputError(f"--timeout {self.timeout:g} leaves no time; use a number of seconds above 0")
        if not (self.drain >= 0 and isfinite(self.drain)):
            raise InputError(f"--drain {self.drain:g} is no number of seconds; use 0 or more")
