"""From what a contestant gave to lines of results.json, one a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specframe.bench.contest.bookkeeping import arrival_seconds
from specframe.bench.contest.timing import Timed
from specframe.kernel.errors import SpecframeError
from specframe.kernel.types import Outcome


def require_sound(outcome: Outcome, rows: int, budget: int, vocabulary: int) -> None:
    """Raises SpecframeError for an outcome that cannot be: too few rows, too many tokens, tokens that do not exist."""
    if len(outcome.tokens) != rows or len(outcome.arrivals) != rows:
        raise SpecframeError(f"gave {len(outcome.tokens)} rows for {rows} prompts")
    for tokens, arrivals in zip(outcome.tokens, outcome.arrivals, strict=True):
        if not 1 <= len(tokens) <= budget:
            raise SpecframeError(f"gave {len(tokens)} tokens, where 1 to {budget} were asked for")
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise SpecframeError(f"gave a token outside the target's vocabulary of {vocabulary}")
        if len(arrivals) != len(tokens):
            raise SpecframeError(f"got {len(arrivals)} arrival times for {len(tokens)} tokens")


def describe(timed: Timed) -> list[dict[str, Any]]:
    """Each row's figures, ready for JSON. Raises TypeError for further figures that JSON cannot hold.

    Rows that were decoded together share the time by their tokens, so that times of rows add up.
    """
    outcome = timed.outcome
    total = sum(map(len, outcome.tokens))
    further: Sequence[Mapping[str, Any]] = outcome.figures() if outcome.figures else [{}] * len(outcome.tokens)
    lines = []
    for tokens, arrivals, more in zip(outcome.tokens, outcome.arrivals, further, strict=True):
        share = len(tokens) / total
        line = {
            "began": timed.began,
            "seconds": timed.seconds * share,
            "first_token_seconds": arrivals[0] - timed.start,
            "tokens": len(tokens),
            "token_seconds": token_quantiles(arrivals),
            "peak_memory_bytes": timed.peak_memory_bytes,
            **more,
        }
        line["bench_seconds"] = more.get("bench_seconds", 0.0) + len(set(arrivals)) * arrival_seconds()
        json.dumps(line)
        lines.append(line)
    return lines


def token_quantiles(arrivals: Sequence[float]) -> list[float | None]:
    """Seconds per token at the 50th and 95th percentile of the tokens, the first chunk left out.

    Tokens that come together share the time since those before them. None where all came at once.
    """
    costs: list[float] = []
    since, chunk = None, 0
    for index, time in enumerate(arrivals):
        chunk += 1
        if index + 1 < len(arrivals) and arrivals[index + 1] == time:
            continue
        if since is not None:
            costs += [(time - since) / chunk] * chunk
        since, chunk = time, 0
    if not costs:
        return [None, None]
    costs.sort()
    return [costs[round(share * (len(costs) - 1))] for share in (0.5, 0.95)]
