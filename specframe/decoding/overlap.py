"""Overlap of drafting with scoring: the drafter works in a second thread, joined before anything is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch

from specframe.decoding.clock import Clock
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Drafter, drafting_ahead
from specframe.kernel.types import Context, TokenTree

RunAhead = Callable[[TokenTree, Context], None]
"""The method that `drafting_ahead` returns."""


@dataclass(frozen=True)
class Threads:
    """Numbers of OpenMP threads of two models that compute at the same time."""

    target: int
    drafter: int


def threads_of(asked: Mapping[str, int] | None, drafter: Drafter) -> Threads | None:
    """The numbers of `run.threads`. Raises InputError for a drafter that does not work while the target scores."""
    if asked is None:
        return None
    if not drafter.promise.overlaps_scoring:
        raise InputError(
            "run.threads is for a target and a drafter that compute at the same time, and this drafter waits for the "
            "target: leave it out, or put the drafter into `ahead`"
        )
    return Threads(**asked)


class Overlap:
    """A session's second thread, in which a drafter that drafts ahead works while the target scores.

    It starts in a cycle and ends when no row is left, or with an exception. Inference mode and the number of OpenMP
    threads are per thread, so they are set in it. Other drafters have no second thread.
    """

    def __init__(self, drafter: Drafter, clock: Clock, threads: Threads | None = None) -> None:
        """The thread of a session's drafter; its time is added to the session's clock."""
        self._run_ahead = drafting_ahead(drafter)
        self._clock = clock
        self._threads = threads
        self._worker: ThreadPoolExecutor | None = None

    def drafting(self, draft: TokenTree, context: Context) -> AbstractContextManager[None]:
        """A context in which the drafter drafts beyond `draft`; it ends when both the block and the drafter are done.

        An exception of the drafter is raised once, at the end; one of the block takes precedence.
        """
        return nullcontext() if self._run_ahead is None else self._drafting(self._run_ahead, draft, context)

    @contextmanager
    def _drafting(self, run_ahead: RunAhead, draft: TokenTree, context: Context) -> Iterator[None]:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "ahead", self._begin)
        running = self._worker.submit(self._run, run_ahead, draft, context)
        try:
            with using(self._threads.target if self._threads else None):
                yield
            with self._clock.phase("wait"):
                seconds = running.result()
        except BaseException:
            self.end()
            raise
        self._clock.seconds["overlap"] += seconds
        self._clock.calls["overlap"] += 1

    def end(self) -> None:
        """Ends the thread once its current work is done; the next cycle starts another."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None

    def _begin(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads.drafter)

    @staticmethod
    @torch.inference_mode()
    def _run(run_ahead: RunAhead, draft: TokenTree, context: Context) -> float:
        """Runs in the second thread; returns the seconds that it took."""
        start = perf_counter()
        run_ahead(draft, context)
        return perf_counter() - start


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """A context in which this thread computes with `threads` OpenMP threads; None: with as many as before."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
