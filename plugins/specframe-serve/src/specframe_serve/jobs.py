"""Answers in the making, as the engine and the web side share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from specframe import Entry, Request
from specframe.plugin import Acceptance

if TYPE_CHECKING:
    from torch import Tensor

    from specframe_serve.logprobs import PromptScores, TokenLogprobs


@dataclass(frozen=True)
class Progress:
    """The tokens that a cycle gave a job."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    """One for each of the tokens, or none where they were not asked for."""
    ended: str | None = None
    """`length`, `end`, `stop`, `cancelled`, `timeout`, `shutdown` or `failed`; None while it goes on."""


@dataclass(eq=False)
class Job:
    """One row to decode: the engine's request, and where its progress goes."""

    request: Request
    deliver: Callable[[Progress], None]
    """Callback run in the engine's thread."""
    logprobs: int | None = None
    """Number of likeliest tokens to report with each token; None: no log probabilities."""
    scored: bool = False
    """True if the prompt's tokens are to have log probabilities, too."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log probabilities of all prompt tokens but the first, which nothing predicts; complete before any token is
    delivered."""
    salt: str = ""
    """Name of the part of the prefix cache that it reads and fills."""
    features: list[dict[str, Tensor]] = field(default_factory=list)
    """The target's features of its text, for the prefix cache: one part for each cycle."""
    stale: bool = False
    """True if those are not the features that further rows get."""
    scores: PromptScores | None = None
    """Scores of its prompt in the making, until which its progress is held."""
    held: list[Progress] = field(default_factory=list)
    deadline: float = float("inf")
    """Time at which the job is given up, by `monotonic`."""
    arrived: float = field(default_factory=monotonic)
    cancelled: bool = False
    """Set by the web side when the client has left."""
    entry: Entry | None = None
    """Row in the session, once the job is admitted."""
    ahead: int = 0
    """Tokens of its prompt that were read before its admission."""
    known: int = 0
    """Tokens of its prompt that the prefix cache had when it arrived."""
    found: int = 0
    """Tokens of its prompt that came from the prefix cache."""
    sent: int = 0
    """Tokens delivered."""
    last: float = 0.0
    """Time of the latest tokens."""
    first: float | None = None
    """Time of the first token."""
    acceptance: Acceptance = field(default_factory=Acceptance)

    def send(self, progress: Progress) -> None:
        """Delivers progress, or holds it until the prompt has its scores."""
        if self.scores is None:
            self.deliver(progress)
        else:
            self.held.append(progress)

    def release(self) -> None:
        """Delivers what was held: the prompt has its scores."""
        assert self.scores is not None
        self.prompt_logprobs, self.scores = self.scores.found, None
        for progress in self.held:
            self.deliver(progress)

    @property
    def unread(self) -> int:
        """Tokens of its prompt that are still to be read."""
        return len(self.request.tokens) - max(self.ahead, self.known)
