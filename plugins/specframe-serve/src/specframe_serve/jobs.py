"""The jobs that engine and web side share, and the queue in which they wait for a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic

from torch import Tensor

from specframe import Entry, Request
from specframe.plugin import Acceptance
from specframe_serve.errors import shutting_down
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
    """Scores of its prompt in the making, until which its progress is not sent."""
    unsent: list[Progress] = field(default_factory=list)
    deadline: float = float("inf")
    """Time at which the job is given up, by `monotonic`."""
    arrived: float = field(default_factory=monotonic)
    cancelled: bool = False
    """Set by the web side when the client has left."""
    entry: Entry | None = None
    """Row in the session, once the job is admitted."""
    read_tokens: int = 0
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
            self.unsent.append(progress)

    def release(self) -> None:
        """Delivers what was not sent: the prompt has its scores."""
        assert self.scores is not None
        self.prompt_logprobs, self.scores = self.scores.found, None
        for progress in self.unsent:
            self.deliver(progress)

    @property
    def unread(self) -> int:
        """Tokens of its prompt that are still to be read."""
        return len(self.request.tokens) - max(self.read_tokens, self.known)


class Queue:
    """Waiting jobs in order of arrival, shared by the engine's thread and the web side.

    A prompt of more than `prefill` tokens is *long*: it is read in pieces, and shorter prompts after it are admitted
    between two pieces. Then the first long prompt has turns until as many of its tokens are read as of those, so that a
    stream of short prompts at most doubles its time, and a slot is left for it.
    """

    def __init__(self, prefill: int, piece: int) -> None:
        """An empty queue, of which long jobs are read in pieces of `piece` tokens."""
        self.prefill = prefill
        self.piece = piece
        self.closed = False
        self.scoring = False
        """True once the target gives the features that prompts are scored by, until which those jobs wait."""
        self._jobs: deque[Job] = deque()
        self._change = Condition()
        self._owed = 0  # tokens of short prompts that were read since, for which the long one has turns

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, jobs: Sequence[Job]) -> None:
        """Appends jobs. Raises ApiError once it is closed."""
        with self._change:
            if self.closed:
                raise shutting_down()
            self._jobs.extend(jobs)
            self._change.notify()

    @property
    def half_read(self) -> bool:
        """True if a prompt of it is read in part."""
        with self._change:
            return any(job.read_tokens for job in self._jobs)

    def close(self) -> None:
        """Wakes the one who waits: no jobs come any more."""
        with self._change:
            self.closed = True
            self._change.notify()

    def wait(self) -> bool:
        """Waits for a job; false once the queue is closed and empty."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self.closed)
            return bool(self._jobs)

    def take(self, gone: Callable[[Job], bool]) -> list[Job]:
        """Removes and returns the jobs that are `gone`."""
        with self._change:
            found = [job for job in self._jobs if gone(job)]
            for job in found:
                self._jobs.remove(job)
            return found

    def next_long(self, free: int) -> Job | None:
        """The long job whose turn it is; None: it is the short ones' turn, or there is no slot for it."""
        with self._change:
            long = self._long()
            if long is None or free < 1 or (not self._owed and self._short(long, free)[0]):
                return None
            self._owed = max(0, self._owed - self.piece)
            return long

    def next_short(self, free: int) -> list[Job]:
        """Removes and returns the short jobs to admit together, in order of arrival.

        They are read as a rectangle of padded prompts, of at most `prefill` tokens.
        """
        with self._change:
            long = self._long()
            jobs, read = self._short(long, free)
            self._owed = 0 if long is None else read
            for job in jobs:
                self._jobs.remove(job)
            return jobs

    @property
    def _ready(self) -> Iterator[Job]:
        return (job for job in self._jobs if self.scoring or not job.scored)

    def _long(self) -> Job | None:
        """The first job that is read in pieces."""
        return next((job for job in self._ready if job.read_tokens or job.unread > self.prefill), None)

    def _short(self, long: Job | None, free: int) -> tuple[list[Job], int]:
        """The short jobs to admit together, and the tokens that are read for them."""
        jobs: list[Job] = []
        width, passed = 0, False
        for job in self._ready:
            if job is long:
                passed = True
                free -= 1
            if len(jobs) >= free:
                break
            if job is long or (passed and job.unread > self.prefill):
                continue
            wider = max(width, job.unread)
            if jobs and wider * (len(jobs) + 1) > self.prefill:
                break
            width = wider
            jobs.append(job)
        return jobs, width * len(jobs)
