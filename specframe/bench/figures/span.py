"""When a bench ran: how long, and how far from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True)
class Span:
    """From the first run's begin to the last one's end, in seconds since 1970."""

    begin: float
    end: float

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> Self | None:
        """The span of a bench's runs; None where it is not recorded.

        Results whose runs have no start time were made when the last ended, and ran without a break.
        """
        runs = results["runs"]
        if runs and all(run.get("began") is not None for run in runs):
            return cls(min(run["began"] for run in runs), max(run["began"] + run["seconds"] for run in runs))
        made = (results.get("provenance") or {}).get("made")
        if not made:
            return None
        end = datetime.fromisoformat(made).timestamp()
        return cls(end - sum(run["seconds"] for run in runs), end)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin

    def distance(self, other: Span) -> float:
        """Seconds from the middle of one to the middle of the other."""
        return abs(self.begin + self.end - other.begin - other.end) / 2


def format_duration(seconds: float) -> str:
    """A duration in the unit that suits it: `40 seconds`, `1.2 minutes`, `3 hours`."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
