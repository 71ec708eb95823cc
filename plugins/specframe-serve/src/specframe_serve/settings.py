"""Settings of the server: where it listens, how much it decodes at a time, what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from specframe import InputError

if TYPE_CHECKING:
    import torch

PIECE = 64
"""Tokens of a piece of a long prompt on a CPU."""


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The limits of a server. Raises InputError for one that serves nothing."""

    name: str
    """Name of the model that clients send."""
    slots: int = 8
    """Rows that are decoded together."""
    queue: int = 64
    """Rows that may wait for a slot; more are refused with 429."""
    context: int = 4096
    """Tokens of one row, prompt and answer together; the target's context where that is less."""
    to_end: bool = False
    """True if the answer to a conversation that names no number of tokens goes on to the end of the context."""
    strict_schemas: bool = False
    """True if a JSON schema with keywords that llguidance does not know is refused; else these are ignored."""
    prefill: int = 512
    """Prompt tokens that are read between two cycles; a longer prompt is read in pieces."""
    piece: int | None = None
    """Tokens of a piece; None: see `piece_on`."""
    cache: int = 512
    """Megabytes of texts that are kept so that prompts that begin as they do are read from where they part; 0: none."""
    timeout: float = 600.0
    """Seconds from a request's arrival to the end of its answer."""
    body: int = 1 << 20
    """Bytes of a request."""
    connections: int = 256
    """Connections that are open at a time."""
    drain: float = 60.0
    """Seconds that running requests have left at the end."""
    key: str | None = None
    """Bearer token that clients must send."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Further ones by the names of clients, each of which has a prefix cache to itself."""
    prompt_details: bool = False
    """True if `usage` has the number of prompt tokens that came from the prefix cache."""
    hosts: frozenset[str] | None = None
    """The names that the Host header may have; None: any."""
    origins: tuple[str, ...] = ()
    """The origins of web pages that may send requests; `*` is any."""

    def piece_on(self, device: torch.device | None) -> int:
        """Tokens of a long prompt that are read between two cycles, at most `prefill`.

        On a CPU, pieces of 64 tokens take hardly longer in all than the whole; on a GPU larger ones are faster.
        """
        few = device is None or device.type == "cpu"
        return min(self.prefill, self.piece or (PIECE if few else self.prefill))

    def __post_init__(self) -> None:
        for name in ("slots", "queue", "context", "prefill", "body", "connections"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} {getattr(self, name)} serves nothing; use 1 or more")
        if self.piece is not None and self.piece < 1:
            raise InputError(f"--piece {self.piece} reads nothing; use 1 or more")
        if self.cache < 0:
            raise InputError(f"--cache {self.cache} is no size; use 0 or more megabytes")
        if not self.timeout > 0:
            raise InputError(f"--timeout {self.timeout:g} leaves no time; use a number of seconds above 0")
        if not (self.drain >= 0 and isfinite(self.drain)):
            raise InputError(f"--drain {self.drain:g} is no number of seconds; use 0 or more")
