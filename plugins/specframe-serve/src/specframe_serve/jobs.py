"""Jobs that the engine and the web server share, and the queue in which they wait for a slot."""

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
    """Tokens that a cycle added to a job."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    """Log probabilities of each token; empty if not requested."""
    ended: str | None = None
    """`length`, `end`, `stop`, `cancelled`, `timeout`, `shutdown` or `failed`; None while the job continues."""


@dataclass(eq=False)
class Job:
    """One row to decode: the engine's request and the receiver of its progress."""

    request: Request
    deliver: Callable[[Progress], None]
    """Callback that runs in the engine's thread."""
    logprobs: int | None = None
    """Number of most likely tokens to report with each token; None: no log probabilities."""
    scored: bool = False
    """True if log probabilities of the prompt's tokens are requested, too."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log probabilities of all prompt tokens but the first, which has none; complete before tokens are delivered."""
    salt: str = ""
    """Name of the part of the prefix cache that the job reads and fills."""
    features: list[dict[str, Tensor]] = field(default_factory=list)
    """The target's features of the text, for the prefix cache; one part per cycle."""
    stale: bool = False
    """True if later rows get other features than these."""
    scores: PromptScores | None = None
    """Scores of the prompt in progress; progress is held back until they are complete."""
    unsent: list[Progress] = field(default_factory=list)
    deadline: float = float("inf")
    """Time by `monotonic` at which the job is ended."""
    arrived: float = field(default_factory=monotonic)
    cancelled: bool = False
    """Set by the web server when the client has left."""
    entry: Entry | None = None
    """Row in the session, once admitted."""
    read_tokens: int = 0
    """Number of prompt tokens that were read before the admission."""
    known: int = 0
    """Number of prompt tokens in the prefix cache when the job arrived."""
    found: int = 0
    """Number of prompt tokens that came from the prefix cache."""
    sent: int = 0
    """Number of tokens delivered."""
    last: float = 0.0
    """Time of the latest tokens."""
    first: float | None = None
    """Time of the first token."""
    acceptance: Acceptance = field(default_factory=Acceptance)

    def send(self, progress: Progress) -> None:
        """Delivers progress, or holds it back until the prompt has its scores."""
        if self.scores is None:
            self.deliver(progress)
        else:
            self.unsent.append(progress)

    def release(self) -> None:
        """Delivers the progress held back, now that the prompt has its scores."""
        assert self.scores is not None
        self.prompt_logprobs, self.scores = self.scores.found, None
        for progress in self.unsent:
            self.deliver(progress)

    @property
    def unread(self) -> int:
        """Number of prompt tokens still to be read."""
        return len(self.request.tokens) - max(self.read_tokens, self.known)


class Queue:
    """Waiting jobs in order of arrival, shared by the engine's thread and the web server.

    A prompt of more than `prefill` tokens is *long*: it is read in pieces, and shorter prompts after it are admitted
    between two pieces. After that, the first long prompt has turns until as many of its tokens are read as were read of
    short ones. A stream of short prompts therefore at most doubles its time, and a slot is reserved for it.
    """

    def __init__(self, prefill: int, piece: int) -> None:
        """Creates an empty queue whose long jobs are read in pieces of `piece` tokens."""
        self.prefill = prefill
        self.piece = piece
        self.closed = False
        self.scoring = False
        """True once the target returns the features from which prompts are scored; those jobs wait until then."""
        self._jobs: deque[Job] = deque()
        self._change = Condition()
        self._owed = 0  # tokens of short prompts read since then, for which the long prompt gets turns

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, jobs: Sequence[Job]) -> None:
        """Appends jobs. Raises ApiError if the queue is closed."""
        with self._change:
            if self.closed:
                raise shutting_down()
            self._jobs.extend(jobs)
            self._change.notify()

    @property
    def half_read(self) -> bool:
        """True if one of its prompts is partly read."""
        with self._change:
            return any(job.read_tokens for job in self._jobs)

    def close(self) -> None:
        """Wakes the waiting thread: no more jobs will come."""
        with self._change:
            self.closed = True
            self._change.notify()

    def wait(self) -> bool:
        """Waits for a job; returns False once the queue is closed and empty."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self.closed)
            return bool(self._jobs)

    def take(self, gone: Callable[[Job], bool]) -> list[Job]:
        """Removes and returns the jobs for which `gone` is true."""
        with self._change:
            found = [job for job in self._jobs if gone(job)]
            for job in found:
                self._jobs.remove(job)
            return found

    def next_long(self, free: int) -> Job | None:
        """Returns the long job whose turn it is; None if it is the short jobs' turn, or there is no slot for it."""
        with self._change:
            long = self._long()
            if long is None or free < 1 or (not self._owed and self._short(long, free)[0]):
                return None
            self._owed = max(0, self._owed - self.piece)
            return long

    def next_short(self, free: int) -> list[Job]:
        """Removes and returns the short jobs to admit together, in order of arrival.

        They are read as one padded batch of at most `prefill` tokens.
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
        """Returns the first job that is read in pieces."""
        return next((job for job in self._ready if job.read_tokens or job.unread > self.prefill), None)

    def _short(self, long: Job | None, free: int) -> tuple[list[Job], int]:
        """Returns the short jobs to admit together, and the number of tokens read for them."""
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
