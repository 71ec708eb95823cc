"""What holds for all contestants of a bench."""

from __future__ import annotations

from dataclasses import dataclass

from specframe.kernel.errors import InputError

LONGEST = 86400
"""Seconds of a pause."""


@dataclass(frozen=True)
class Terms:
    """How much is decoded, and how. Raises InputError for terms that measure nothing."""

    batch: int = 1
    repeats: int = 3
    seed: int = 0
    turns: int = 1
    """How many turns of a conversation are decoded, at most."""
    limit: int | None = None
    """How many prompts of all sets together."""
    pause: float = 0.0
    """Seconds between repeats: spread in time, they sample more of the machine's load variation."""
    bound: bool = False
    """Whether to compute what the best verifier would accept: one more decoding of each prompt, not timed."""

    def __post_init__(self) -> None:
        for name in ("batch", "repeats", "turns", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} {value} measures nothing; use 1 or more")
        if not 0 <= self.pause <= LONGEST:
            raise InputError(f"a pause of {self.pause:g} seconds is out of range; use 0 to {LONGEST}")
