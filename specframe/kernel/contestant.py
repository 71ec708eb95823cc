"""Contestants of `specframe bench`: their interface, and what they give."""

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
    """Time at which each of these tokens could be read, by `time.perf_counter()`."""
    figures: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Further figures of each row for results.json; called once the time is taken, so it may take its own."""


class Contestant(Protocol):
    """A way to decode that `specframe bench` measures with others, all of them around one target."""

    name: str
    """Name in reports."""
    lossless: bool | None
    """True if it promises the target's own law; None where that is unknown."""

    def prepare(self, target: Target, sampling: Any, batch: int) -> None:
        """Gets ready to decode: loads and binds its parts. The target is shared and must not be changed.

        `sampling` holds the recipe section's values (`temperature`, `top_k`, `top_p`, `min_p`, `max_new_tokens`,
        `ignore_eos`, ...), `batch` the most prompts it will be given at a time. Raises a SpecframeError for settings
        that it cannot follow.
        """
        ...

    def decode(self, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
        """Continues the prompts `rows`, token ids each, side by side. This call, and nothing else, is timed.

        torch's generators have been seeded; all else that is random must follow from `seed`.
        """
        ...
