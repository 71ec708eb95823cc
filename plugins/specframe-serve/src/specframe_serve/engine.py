"""The thread that owns the session: takes jobs from a bounded queue and decodes them together."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import ceil
from threading import Condition, Thread
from time import monotonic

from specframe import Cycle, InputError, Pipeline, Session
from specframe_serve.jobs import Job, Progress, TokenLogprobs
from specframe_serve.meters import Meters, Sources
from specframe_serve.settings import ServeSettings

log = logging.getLogger("specframe.serve")

SETTLE = 64
"""After so many cycles a device's clock is read."""


class Full(Exception):
    """The queue takes no more; `wait` estimates the seconds until it does."""

    def __init__(self, wait: int) -> None:
        super().__init__("the queue is full")
        self.wait = wait


class Closed(Exception):
    """The server is shutting down."""


class Engine:
    """Decodes jobs in the order of their arrival, `slots` at a time; a finished one makes room for the next.

    A target serves one caller at a time, so one thread owns the session, and the web side hands jobs over. Between two
    cycles at most `prefill` prompt tokens are read, a longer prompt in pieces, so that running rows do not wait long
    for those that come.
    """

    def __init__(self, pipeline: Pipeline, settings: ServeSettings, meters: Meters) -> None:
        """An engine that waits for `start`."""
        self.settings = settings
        self.longest = min(settings.context, pipeline.parts.target.context)
        """Tokens a row may have."""
        self.nodes = pipeline.parts.nodes - 1
        """Tokens a draft may have."""
        self._pipeline = pipeline
        self._meters = meters
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Job] = {}
        self._session: Session | None = None
        self._clock = pipeline.clock()
        self._numbers = count()
        self._cycles = 0
        self._closed = False
        self._change = Condition()
        self._seconds = 1.0  # a job's time in its slot, smoothed
        self._thread = Thread(target=self._serve, name="specframe-engine", daemon=True)
        meters.follow(Sources(self._waiting.__len__, lambda: len(self._running), self._clock.seconds))

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs are decoded."""
        return self._thread.is_alive() and not self._closed

    def submit(self, jobs: Sequence[Job]) -> None:
        """Puts jobs into the queue, all or none. Raises Full, or Closed while the server shuts down."""
        with self._change:
            if self._closed:
                raise Closed
            waiting = len(self._waiting)
            if waiting + len(jobs) > self.settings.queue:
                self._meters.refused.inc()
                raise Full(min(60, max(1, ceil(self._seconds * (waiting + 1) / self.settings.slots))))
            for job in jobs:
                job.request = replace(job.request, number=next(self._numbers))
            self._waiting.extend(jobs)
            self._change.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Gives jobs up: a client has left. Done before the next cycle."""
        with self._change:
            for job in jobs:
                job.cancelled = True
            self._change.notify()

    def close(self, timeout: float | None = None) -> None:
        """Takes no more jobs, decodes those it has, and ends the thread."""
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _serve(self) -> None:
        while self._await_jobs():
            try:
                with self._pipeline.open_endless(
                    self.settings.slots, self._clock, longest=self.longest, watch=self._take_in
                ) as self._session:
                    while self._running or self._waiting:  # an idle server leaves the target to others
                        self._drop(self._session)
                        if not self._read_ahead(self._session):
                            self._admit(self._session)
                        if self._session.live:
                            self._session.step()
            except Exception:  # an error of a part ends the rows it was decoding, not the server
                log.exception("decoding failed; its requests are given up")
                for job in list(self._running.values()) or self._take_all():
                    self._end(job, "failed")
            self._session = None

    def _await_jobs(self) -> bool:
        """Waits for a job; false once the engine is closed and has none left."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed)
            return bool(self._waiting)

    def _drop(self, session: Session) -> None:
        """Ends the jobs whose clients have left or whose time is up."""
        now = monotonic()
        with self._change:
            gone = [job for job in self._waiting if job.cancelled or job.deadline < now]
            for job in gone:
                self._waiting.remove(job)
        gone += [job for job in self._running.values() if job.cancelled or job.deadline < now]
        for job in gone:
            if job.entry is not None:
                session.cancel(job.entry)
            self._end(job, "cancelled" if job.cancelled else "timeout")

    def _read_ahead(self, session: Session) -> bool:
        """Reads a piece of the next job's prompt if it is a long one; whether more has to be read before others come.

        With no row running nothing waits for it, and it is read whole.
        """
        with self._change:
            job = self._waiting[0] if self._waiting and session.free and session.live else None
        if job is None or len(job.request.tokens) - job.ahead <= self.settings.prefill:
            return False
        try:
            job.ahead = session.read_ahead(job.request.tokens, self.settings.prefill)
        except InputError:
            return False  # its admission reports it
        return job.ahead > 0

    def _admit(self, session: Session) -> None:
        """Moves waiting jobs into free slots, as many as `prefill` allows."""
        jobs = self._next(session.free)
        if not jobs:
            return
        self._running |= {job.request.number: job for job in jobs}
        try:
            session.admit([job.request for job in jobs])
        except InputError:  # one of them is at fault, and no row has changed
            for job in jobs:
                self._admit_alone(session, job)

    def _admit_alone(self, session: Session, job: Job) -> None:
        try:
            session.admit([job.request])
        except InputError:
            log.exception("a prompt was refused")
            self._end(job, "failed")

    def _next(self, free: int) -> list[Job]:
        """The jobs to admit now, in order of arrival: they are read as a rectangle of padded prompts."""
        jobs: list[Job] = []
        width = 0
        with self._change:
            while self._waiting and len(jobs) < free:
                width = max(width, len(self._waiting[0].request.tokens))
                if jobs and (jobs[0].ahead or width * (len(jobs) + 1) > self.settings.prefill):
                    break
                jobs.append(self._waiting.popleft())
        return jobs

    def _take_all(self) -> list[Job]:
        """All jobs that wait, taken out of the queue."""
        with self._change:
            jobs = list(self._waiting)
            self._waiting.clear()
        return jobs

    def _take_in(self, cycle: Cycle) -> None:
        """Delivers what a cycle committed, and counts what drafting did."""
        session = self._session
        assert session is not None
        now = monotonic()
        fresh = cycle.committed.prompt is not None
        host = cycle.verdict.to_host(cycle.draft)
        depths = (cycle.draft.depth * cycle.draft.valid).amax(1).tolist()
        drafted = cycle.draft.valid.sum(1).tolist()
        for row, entry in enumerate(session.cycle_rows):
            job = self._running[entry.request.number]
            if fresh:
                job.entry, job.first = entry, now
                self._meters.admitted(len(entry.request.tokens), now - job.arrived)
            else:
                accepted = len(host.paths[row])
                job.speculation.count(accepted, drafted[row] - 1, depths[row])
                self._meters.decoded(accepted, drafted[row] - 1, depths[row])
            tokens = entry.tokens[job.sent :]
            job.sent = len(entry.tokens)
            self._meters.generated.inc(len(tokens))
            nodes = [0, *host.paths[row]][: len(tokens)]
            logprobs = [] if job.logprobs is None else _logprobs(cycle, row, nodes, tokens, job.logprobs)
            if entry.ended is not None:
                self._finish(job, entry.ended, now)
            job.deliver(Progress(tokens, logprobs, entry.ended))
        self._cycles += 1
        if self._cycles % SETTLE == 0:
            self._clock.settle()

    def _end(self, job: Job, reason: str) -> None:
        """Ends a job that the session does not end."""
        self._finish(job, reason, monotonic())
        job.deliver(Progress([], [], reason))

    def _finish(self, job: Job, reason: str, now: float) -> None:
        self._running.pop(job.request.number, None)
        if job.first is not None:
            self._seconds += 0.1 * (now - job.first - self._seconds)
        self._meters.ended(reason, now - job.arrived, job.first and now - job.first, job.sent)


def _logprobs(cycle: Cycle, row: int, nodes: list[int], tokens: list[int], count: int) -> list[TokenLogprobs]:
    """The log probabilities of the tokens that follow the nodes of a row, of the logits as the target gave them."""
    laws = cycle.scores.logits[row, nodes].float().log_softmax(-1)  # [n, V]
    chosen = laws.gather(1, cycle.verdict.path.new_tensor(tokens)[:, None])[:, 0].tolist()
    best = laws.topk(count)
    return [
        TokenLogprobs(own, list(zip(ids, values, strict=True)))
        for own, ids, values in zip(chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    ]
