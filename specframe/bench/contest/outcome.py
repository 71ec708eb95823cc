"""A contestant's outcome: lines of results.json, and whether greedy tokens are those of `generate`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from specframe.bench.contest.timing import Timed, arrival_seconds
from specframe.decoding.baseline import find_divergences, generate_with_transformers
from specframe.decoding.encoding import key_of
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.contestant import Outcome
from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import Target, text_of
from specframe.native.linear import unpack_again
from specframe.recipes.registry import one_line
from specframe.sampling.grammar import grammar_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """Comparison of a continuation with the reference's."""

    same: bool | None = None
    """True if both are the same, near ties included; None where the comparison has no meaning."""
    gap: float | None = None
    """Gap between the target's logits of the two tokens where the texts diverge; None where one is only shorter."""
    noise: float | None = None
    """Effect of arithmetic noise on a logit there."""


class Reference:
    """One target's greedy continuations by `generate`, computed once per prompt and never timed."""

    def __init__(self, target: Target, sampling: SamplingSettings) -> None:
        model: Any = text_of(target).model
        self._model = model if callable(getattr(model, "generate", None)) else None
        self._sampling, self._grammar = sampling, grammar_of(target, sampling.grammar)
        self._ends = frozenset() if sampling.ignore_eos else frozenset(text_of(target).ends)
        self._known: dict[object, list[int]] = {}

    @property
    def applies(self) -> bool:
        """True if there is a reference to compare with: a transformers model, decoding greedily."""
        return self._model is not None and self._sampling.temperature == 0

    def learn(self, row: Sequence[int], tokens: Sequence[int]) -> None:
        """Notes the tokens that `generate` gave for a prompt that it decoded alone."""
        self._known.setdefault(key_of(row), list(tokens))

    def compare(self, row: Sequence[int], tokens: Sequence[int]) -> Identity:
        """Compares the continuation of a prompt with that of `generate`."""
        if self._model is None or not self.applies:
            return Identity()
        theirs = self._known.get(key_of(row))
        if theirs is None:
            unpack_again(self._model)
            try:
                with torch.inference_mode():
                    given = self._sampling, self._ends
                    (theirs,) = generate_with_transformers(self._model, [row], *given, grammar=self._grammar)
            except Exception as error:  # the bench goes on without it
                logger.warning("nothing is compared with transformers' generate: it failed: %s", one_line(error))
                self._model = None
                return Identity()
            self._known[key_of(row)] = theirs
        found = find_divergences(self._model, [row], [tokens], [theirs], self._sampling, self._grammar)
        if not found:
            return Identity(True)
        first = found[0]
        return Identity(first.tie, first.gap, first.noise) if isfinite(first.gap) else Identity(False)


def require_sound(outcome: Outcome, rows: int, budget: int, vocabulary: int) -> None:
    """Raises SpecframeError for an invalid outcome: too few rows, too many tokens, or unknown tokens."""
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
    """Returns each row's figures, ready for JSON. Raises TypeError for further figures that JSON cannot hold.

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
            "waited_seconds": None if timed.waited is None else timed.waited * share,
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

    Tokens that arrive together share the time since the previous ones. None if all arrive at once.
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
