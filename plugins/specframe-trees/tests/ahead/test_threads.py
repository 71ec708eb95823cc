"""Drafting ahead in a second thread: tokens, exceptions and time, with controls that a late join is found by."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from time import sleep
from typing import Any

import pytest
from chains_ahead import NOISE, ahead, decoded, emission, parts_of

from specframe.certify.compositions.branches import HiddenState
from specframe.components.targets.table import TableTarget
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding import clock as clocks
from specframe.decoding import overlap
from specframe.decoding import session as sessions
from specframe.decoding.clock import Clock
from specframe.decoding.overlap import Overlap, Threads
from specframe.decoding.session import Parts
from specframe.kernel.capabilities import Needs
from specframe.kernel.types import Context, Draw, TokenTree
from specframe_trees.ahead.ahead import Ahead


class Sleepy(Ahead):
    """It sleeps before, within and after its work."""

    chance = Random(0)

    def run_ahead(self, draft: TokenTree, context: Context) -> None:
        sleep(self.chance.choice([0, 0, 0.002]))
        super().run_ahead(draft, context)
        sleep(self.chance.choice([0, 0, 0.002]))


class Inline(Overlap):
    """No second thread: what is drafted ahead is drafted before the target scores."""

    @contextmanager
    def drafting(self, draft: TokenTree, context: Context) -> Iterator[None]:
        assert self._run_ahead is not None
        self._run_ahead(draft, context)
        yield


@pytest.mark.full
@pytest.mark.parametrize("sampled", [False, True])
def test_the_threads_change_no_token(monkeypatch: pytest.MonkeyPatch, sampled: bool) -> None:
    """200 prompts, in one thread and in two, which take turns at random; a crash would show where both were."""
    assert faulthandler.is_enabled()
    draw, rule = (Draw.IID, Recursive) if sampled else (Draw.TOP, Match)

    def tokens(kind: type[Ahead] = Ahead, threads: Threads | None = None) -> list[list[int]]:
        return decoded(parts_of(rule(), ahead(kind, window=2, guesses=1, draw=draw), threads))

    two = tokens()
    assert tokens(threads=Threads(1, 1)) == tokens(Sleepy) == two
    monkeypatch.setattr(sessions, "Overlap", Inline)
    assert tokens() == two


class Late(Overlap):
    """Its thread is joined by `Joining`, after the verification."""

    running: threading.Thread | None = None

    @contextmanager
    def drafting(self, draft: TokenTree, context: Context) -> Iterator[None]:
        assert self._run_ahead is not None
        Late.running = threading.Thread(target=self._run, args=(self._run_ahead, draft, context))
        Late.running.start()
        yield


class Joining(Match):
    """The rule `match`, after which the drafter's thread is joined; before it, too, if that has begun by then."""

    needs = Needs()

    def verify(self, tree: TokenTree, laws: Any, random: Any) -> Any:
        running, Late.running = Late.running, None
        if running is not None and Sleepy.chance.random() < 0.5:
            running.join()
        verdict = super().verify(tree, laws, random)
        if running is not None:
            running.join()
        return verdict


class Oversleeping(Ahead):
    """It begins when the verification is over, unless it is waited for."""

    def run_ahead(self, draft: TokenTree, context: Context) -> None:
        sleep(0.01)
        super().run_ahead(draft, context)


def test_control_a_join_after_the_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws then come in the order of the threads, which no replay repeats."""
    monkeypatch.setattr(sessions, "Overlap", Late)
    with pytest.raises((HiddenState, AssertionError)):
        found = emission(Joining, lambda: ahead(Oversleeping, window=1, draw=Draw.IID)).compare(budget=300)
        assert found.tv < NOISE


class Failing(Ahead):
    """Its third draft ahead fails."""

    calls = 0

    def run_ahead(self, draft: TokenTree, context: Context) -> None:
        self.calls += 1
        if self.calls == 3:
            raise ArithmeticError("the third draft fails")
        super().run_ahead(draft, context)


def test_an_exception_of_the_second_thread_is_raised_once() -> None:
    parts = parts_of(Match(), ahead(Failing, window=2))
    with pytest.raises(ArithmeticError, match="the third draft fails"):
        decoded(parts, 4)
    assert len(decoded(parts, 4)) == 4  # a new session on the same parts
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]


def test_the_targets_exception_goes_first() -> None:
    class Broken(TableTarget):
        def score(self, tree: TokenTree) -> Any:
            raise ZeroDivisionError("the target fails")

    drafter = ahead(Failing, window=2)
    drafter.calls = 2
    target = Broken(vocab=3)
    drafter.bind(target)
    with pytest.raises(ZeroDivisionError):
        decoded(Parts(target, drafter, None, Match()), 1)


class Time(threading.local):
    """A time of each thread's own, which passes where a test defines so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_aside_is_no_time_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(clocks, "perf_counter", time)
    monkeypatch.setattr(overlap, "perf_counter", time)

    class Timed(Ahead):
        def run_ahead(self, draft: TokenTree, context: Context) -> None:
            super().run_ahead(draft, context)
            time.now += 1.0

    class Slow(TableTarget):
        def score(self, tree: TokenTree) -> Any:
            time.now += 2.0
            return super().score(tree)

    clock, target, drafter = Clock(), Slow(vocab=3, order=2, seed=0), ahead(Timed, window=2)
    drafter.bind(target)
    with clock.phase("session"):
        decoded(Parts(target, drafter, None, Match()), 8, clock=clock)
    cycles = clock.calls["score"]
    assert clock.calls["overlap"] == cycles > 0
    assert clock.hidden == clock.seconds["overlap"] == cycles
    assert clock.seconds["wait"] == 0 and clock.cycles == 2 * cycles
