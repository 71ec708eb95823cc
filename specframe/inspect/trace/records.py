"""A trace: plain frozen data, no tensors, so that it can be printed, drawn, or kept as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

DrawName = Literal["top", "iid", "without_replacement"]


@dataclass(frozen=True)
class TracedNode:
    """A node of a draft; padding is left out, so indices may have gaps."""

    index: int
    parent: int
    """-1 for the root."""
    depth: int
    token: int
    text: str
    """What the token adds to the text of the path above it."""
    p: float | None
    """The target's probability of it; None for the root, which is committed already."""
    q: float | None
    """The drafter's; None where no law of the drafter is known: the root, copies, caches."""
    draw: DrawName | None
    verdict: Literal["root", "accepted", "rejected"]


@dataclass(frozen=True)
class Bonus:
    """The token that follows the accepted path."""

    token: int
    text: str
    p: float


@dataclass(frozen=True)
class TracedCycle:
    """One cycle: its draft and what became of it."""

    number: int
    """From 1; the prefill is none."""
    nodes: tuple[TracedNode, ...]
    """Parents before children, siblings in the order they were tried; the root first."""
    path: tuple[int, ...]
    """Indices of the accepted nodes, from level 1 down."""
    bonus: Bonus
    kept: int
    """Tokens that went into the text; fewer than path and bonus where it ended within the cycle."""

    @property
    def cut(self) -> int:
        """Tokens of path and bonus that came after the text's end."""
        return len(self.path) + 1 - self.kept


@dataclass(frozen=True)
class Piece:
    """A token of the text, and where it came from."""

    token: int
    text: str
    """What it shows; empty while a character waits for the rest of its bytes."""
    source: Literal["draft", "bonus"]
    cycle: int
    """0: the first token, which the prefill gives."""


@dataclass(frozen=True)
class Trace:
    """How one prompt was decoded.

    Probabilities are those of the recipe's sampling. At temperature 0 every law is one-hot and shows
    nothing beyond the verdict, so there they are read at temperature 1 instead (`read_at`).
    """

    recipe: str
    parts: dict[str, str]
    """The component of each kind, such as drafter: falcon."""
    prompt: str
    temperature: float
    read_at: float
    lossless: bool
    ended: str
    """Why the text ended: `length`, `end` or `stop`."""
    tau: float
    alpha: tuple[float, ...]
    """By depth, the share of cycles whose path got there."""
    reached: tuple[int, ...]
    """The same as a count of cycles."""
    drafted: int
    accepted: int
    cycles: tuple[TracedCycle, ...]
    pieces: tuple[Piece, ...]

    def as_dict(self) -> dict[str, Any]:
        """The trace as JSON can hold it."""
        return asdict(self)
