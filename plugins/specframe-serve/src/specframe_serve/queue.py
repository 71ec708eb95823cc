"""The jobs that wait for a slot, and the order in which their prompts are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Condition

from specframe_serve.errors import shutting_down
from specframe_serve.jobs import Job


class Queue:
    """Waiting jobs in order of arrival, shared by the engine's thread and the web side.

    A prompt of more than `prefill` tokens is *long*: it is read in pieces, and shorter prompts after it are admitted
    between two pieces. Then the first long prompt has turns until as many of its tokens are read as of those, so that a
    stream of short prompts at most doubles its time, and a slot is left for it.
    """

    def __init__(self, size: int, prefill: int, piece: int) -> None:
        """An empty queue of at most `size` jobs, of which long ones are read in pieces of `piece` tokens."""
        self.size = size
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

    def put(self, jobs: Sequence[Job]) -> bool:
        """Appends jobs, all or none; returns whether there was room for them. Raises ApiError once it is closed."""
        with self._change:
            if self.closed:
                raise shutting_down()
            if len(self._jobs) + len(jobs) > self.size:
                return False
            self._jobs.extend(jobs)
            self._change.notify()
            return True

    @property
    def half_read(self) -> bool:
        """True if a prompt of it is read in part."""
        with self._change:
            return any(job.ahead for job in self._jobs)

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
        return next((job for job in self._ready if job.ahead or job.unread > self.prefill), None)

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
