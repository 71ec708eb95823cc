"""Contestants of `specframe bench`: their interface and their output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Target


@dataclass(frozen=True)
class Outcome:
    """Output of a contestant of the bench for B prompts."""

    tokens: Sequence[Sequence[int]]
    """The new tokens of each row, at most `max_new_tokens`; an end-of-sequence token is among them."""
    arrivals: Sequence[Sequence[float]]
    """Time at which each of these tokens became available, by `time.perf_counter()`."""
    figures: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Computes further figures of each row for results.json; called after the timing, so it may be slow."""


class Contestant(Protocol):
    """A way to decode that `specframe bench` compares with others, all of them around one target."""

    name: str
    """Name in reports."""
    lossless: bool | None
    """True if it promises the target's own law; None if that is unknown."""

    def prepare(self, target: Target, sampling: Any, batch: int) -> None:
        """Prepares to decode: loads and binds its parts. The target is shared and must not be changed.

        `sampling` holds the recipe section's values (`temperature`, `top_k`, `top_p`, `min_p`, `max_new_tokens`,
        `ignore_eos`, ...), `batch` the most prompts it will be given at a time. Raises a SpecframeError for settings
        that it cannot follow.
        """
        ...

    def decode(self, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
        """Continues the prompts `rows`, token ids each, as one batch. Only this call is timed.

        torch's generators have been seeded; all other randomness must follow from `seed`.
        """
        ...
