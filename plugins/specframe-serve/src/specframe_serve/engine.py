"""The thread that owns the session: takes jobs from a bounded queue and decodes them together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import uniform
from threading import Thread
from time import monotonic

from torch import Tensor

from specframe import InputError, Pipeline, Session
from specframe.plugin import Cycle, KnownPrefix, NeuralTarget, text_of
from specframe_serve.errors import ApiError, queue_full
from specframe_serve.jobs import Job, Progress, Queue
from specframe_serve.logprobs import PromptScores, logprobs
from specframe_serve.meters import Meters
from specframe_serve.prefixes import Prefixes, aligned
from specframe_serve.settings import ServeSettings

log = logging.getLogger("specframe.serve")

SHORTEST_WAIT, LONGEST_WAIT = 1.0, 4.0
"""Bounds in seconds of the wait that a refused client is asked for, before a random factor."""
PIECE = 64
"""Tokens per piece of a long prompt on a CPU, where pieces cost hardly more than the whole; larger on a GPU."""
SETTLE = 64
"""Number of cycles between readings of a device's clock."""


class Engine:
    """Decodes jobs in order of arrival, `slots` at a time; a finished job makes room for the next.

    A target serves one caller at a time, so one thread owns the session and the web server passes jobs to it. Between
    two cycles at most `prefill` prompt tokens are read, a longer prompt in pieces, so that running rows and short
    prompts do not wait long for it.
    """

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        """Creates an engine; `start` begins decoding."""
        self.settings = settings
        self.longest = min(settings.context, pipeline.parts.target.context)
        """Maximum number of tokens of a row."""
        self.nodes = pipeline.parts.nodes - 1
        """Maximum number of tokens of a draft."""
        self._pipeline = pipeline
        device = text_of(pipeline.parts.target).device
        piece = PIECE if device is None or device.type == "cpu" else settings.prefill
        self._piece = min(settings.prefill, settings.piece or piece)
        self._queue = Queue(settings.prefill, self._piece)
        self._running: dict[int, Job] = {}
        self._prefixes = Prefixes(settings.cache * 1_000_000, pipeline.parts.target, self._running)
        self._session: Session | None = None
        self._clock = pipeline.clock()
        self._numbers = count()
        self._cycles = 0
        self._scoring: list[Job] = []  # jobs whose prompts still need log probabilities
        self._scores_asked = False
        self._given_up = False
        self._seconds = 1.0  # smoothed time of a job in its slot
        self._thread = Thread(target=self._serve, name="specframe-engine", daemon=True)
        self.meters = Meters(settings.name, self._queue, self._running, self._clock.seconds)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the engine decodes jobs."""
        return self._thread.is_alive() and not self._queue.closed

    def require_room(self, rows: int) -> None:
        """Raises ApiError for more rows than the queue holds, or than fit now. In the latter case, the client is
        asked to retry when half of the queue is expected to be free: after a few seconds at most, with a random factor.
        """
        size = self.settings.queue
        if rows > size:
            most = f"the request asks for {rows} answers, and {size} may wait in this server"
            raise ApiError(400, most, code="too_many_answers")
        if len(self._queue) + rows > size and not self._queue.closed:
            self.meters.refused.inc()
            drained = self._seconds * size / 2 / self.settings.slots  # time until half of the queue is free
            raise queue_full(size, min(max(drained, SHORTEST_WAIT), LONGEST_WAIT) * uniform(0.5, 1.5))

    def submit(self, jobs: Sequence[Job]) -> None:
        """Puts all jobs or none into the queue. Raises ApiError if it is full or the server shuts down."""
        self.require_room(len(jobs))
        for job in jobs:
            job.request = replace(job.request, number=next(self._numbers))
            self._scores_asked |= job.scored
            job.known = self._prefixes.count(job)
        self._queue.put(jobs)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs whose client has left, before the next cycle."""
        for job in jobs:
            job.cancelled = True

    def close(self, timeout: float | None = None) -> None:
        """Accepts no more jobs, finishes those it has, and ends the thread."""
        self._queue.close()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def give_up(self) -> None:
        """Accepts no more jobs and ends those it has before the next cycle, because the time to finish them is over."""
        self._given_up = True
        self._queue.close()

    def _serve(self) -> None:
        while self._queue.wait():
            try:
                with self._pipeline.open_endless(
                    self.settings.slots, self._clock, longest=self.longest, watch=self._take_in
                ) as self._session:
                    while self._running or self._queue or self._scoring:  # an idle server releases the target to others
                        self._drop(self._session)
                        self._read(self._session)
                        if self._session.live:
                            self._session.step()
                        self._score_on()
            except Exception:  # an error in a component ends the rows being decoded, not the server
                log.exception("decoding failed; its requests are given up")
                unscored, self._scoring = self._scoring, []
                for job in unscored:
                    job.scores, job.unsent = None, []
                for job in [*self._running.values(), *unscored] or self._queue.take(lambda job: True):
                    self._end(job, "failed")
            self._session = None

    def _drop(self, session: Session) -> None:
        """Ends the jobs whose clients have left or whose time is over; all jobs after `give_up`."""
        now = monotonic()

        def gone(job: Job) -> bool:
            return self._given_up or job.cancelled or job.deadline < now

        for job in self._queue.take(gone) + [job for job in self._running.values() if gone(job)]:
            if job.entry is not None:
                session.cancel(job.entry)
            self._end(job, "cancelled" if job.cancelled else "timeout" if job.deadline < now else "shutdown")

    def _read(self, session: Session) -> None:
        """Reads prompts for one turn: a piece of a long one, or several short ones together."""
        if self._scores_asked and not self._queue.scoring and not self._queue.half_read:
            self._pipeline.parts.target.request(frozenset({"last"}))
            self._prefixes.restart()
            self._queue.scoring = True
        job = self._queue.next_long(session.free)
        if job is None:
            self._admit(session, self._queue.next_short(session.free))
        elif not self._read_ahead(session, job):
            self._queue.take(lambda waiting: waiting is job)
            self._admit(session, [job])

    def _read_ahead(self, session: Session, job: Job) -> bool:
        """Reads a piece of a long prompt; returns False if the rest is small enough to be admitted.

        It also returns False for targets that read prompts only as a whole, and for a prompt that the target refuses;
        the admission then reports the error.
        """
        if job.unread <= (self._piece if job.read_tokens else self.settings.prefill):
            return False
        prefix = None if job.read_tokens else self._find(session, job)
        job.known = job.found
        if not job.read_tokens and job.unread <= self.settings.prefill:
            return False
        try:
            job.read_tokens = session.read_ahead(job.request.tokens, self._piece, prefix)
        except InputError:
            job.read_tokens = 0
        return job.read_tokens > 0

    def _admit(self, session: Session, jobs: Sequence[Job]) -> None:
        """Moves jobs into free slots."""
        while jobs:
            now, later, known = list[Job](), list[Job](), list[KnownPrefix | None]()
            for job in jobs:
                if self._prefixes.sharing(job, now, session):
                    later.append(job)
                    continue
                now.append(job)
                known.append(None if job.read_tokens else self._find(session, job))
            for job, prefix in zip(now, aligned(known), strict=True):
                job.request = replace(job.request, prefix=prefix)
                if prefix is not None:
                    job.found = len(prefix.tokens)
            self._admit_together(session, now)
            jobs = later

    def _find(self, session: Session, job: Job) -> KnownPrefix | None:
        """Returns the beginning of a job's prompt that is cached and need not be read."""
        prefix = self._prefixes.find(job, session)
        job.found = 0 if prefix is None else len(prefix.tokens)
        return prefix

    def _admit_together(self, session: Session, jobs: Sequence[Job]) -> None:
        self._running |= {job.request.number: job for job in jobs}
        try:
            for entry in session.admit([job.request for job in jobs]):
                entry.request = replace(entry.request, prefix=None)
        except InputError:  # one of them caused the error, and no row has changed
            for job in jobs if len(jobs) > 1 else ():
                self._admit_together(session, [job])
            if len(jobs) == 1:
                log.exception("a prompt was refused")
                self._end(jobs[0], "failed")
        for job in jobs:
            job.request = replace(job.request, prefix=None)

    def _begin_scores(self, job: Job, features: Tensor) -> None:
        """Schedules the scores of a job's prompt between later cycles, from its features [L, D] of the tap `last`."""
        target, prompt = self._pipeline.parts.target, job.request.tokens
        assert isinstance(target, NeuralTarget), "the web side refuses it for other targets"
        job.scores = PromptScores(target, prompt, features[: len(prompt)].clone(), job.logprobs or 0)
        self._scoring.append(job)

    def _score_on(self) -> None:
        """Computes scores of a few positions of the first prompt that is not completely scored."""
        for job in self._scoring[:1]:
            if job.cancelled or (job.scores is not None and job.scores.step()):
                self._scoring.remove(job)
                job.release()

    def _take_in(self, cycle: Cycle) -> None:
        """Delivers the tokens committed by a cycle and counts its drafting statistics."""
        session = self._session
        assert session is not None
        now = monotonic()
        fresh = cycle.committed.prompt is not None
        self._prefixes.follow(cycle, session)
        host = cycle.verdict.to_host(cycle.draft)
        depths = (cycle.draft.depth * cycle.draft.valid).amax(1).tolist()
        drafted = cycle.draft.valid.sum(1).tolist()
        for row, entry in enumerate(session.cycle_rows):
            job = self._running[entry.request.number]
            if fresh:
                job.entry, job.first = entry, now
                if job.scored:
                    self._begin_scores(job, cycle.committed.features["last"][row])
                self.meters.admitted(len(entry.request.tokens), job.found, now - job.arrived)
            else:
                accepted = len(host.paths[row])
                self.meters.gap.observe((now - job.last) / max(accepted + 1, 1))
                for each in (job.acceptance, self.meters.acceptance):
                    each.count_row(accepted, drafted[row] - 1, depths[row])
            job.last = now
            tokens = entry.tokens[job.sent :]
            job.sent = len(entry.tokens)
            self.meters.generated.inc(len(tokens))
            nodes = [0, *host.paths[row]][: len(tokens)]
            count = job.logprobs
            found = [] if count is None else logprobs(cycle.scores.logits[row, nodes], tokens, count)
            if entry.error is not None:
                log.error("a row failed: %s", entry.error)
            if entry.ended is not None:
                self._finish(job, entry.ended, now)
            job.send(Progress(tokens, found, entry.ended))
        self._cycles += 1
        if self._cycles % SETTLE == 0:
            self._clock.settle()

    def _end(self, job: Job, reason: str) -> None:
        """Ends a job that the session does not end by itself."""
        self._finish(job, reason, monotonic())
        job.send(Progress([], [], reason))

    def _finish(self, job: Job, reason: str, now: float) -> None:
        self._running.pop(job.request.number, None)
        job.features.clear()
        if job.first is not None:
            self._seconds += 0.1 * (now - job.first - self._seconds)
        self.meters.ended(reason, now - job.arrived, job.first and now - job.first, job.sent)
