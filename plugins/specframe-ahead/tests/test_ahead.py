"""A drafter that goes on while the target scores."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from time import sleep
from typing import Any

import pytest
import torch

from specframe.certify.compositions.audit import audit_drafts
from specframe.certify.compositions.branches import HiddenState
from specframe.certify.compositions.controls import Captured, ReplayedStreams
from specframe.certify.compositions.emission import Emission
from specframe.certify.compositions.enumeration import ForkedStreams
from specframe.components.drafters.fused import Fused
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding import session as sessions
from specframe.decoding.alongside import Alongside, Threads, threads_of
from specframe.decoding.clock import Clock
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.decoding.settings import RunSettings
from specframe.kernel.capabilities import Needs
from specframe.kernel.costs import Costs
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import AheadDrafter, Verifier
from specframe.kernel.types import Committed, Context, Draw, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.random import row_seed
from specframe.testing import check_drafter
from specframe_ahead.ahead import Ahead
from specframe_ahead.behind import Chains
from tests.components.sessions import CONTEXT

WARM = Sampling(temperature=1.0)
NOISE = 1e-9


def model() -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(3, seed=7))


def ahead(kind: type[Ahead] = Ahead, **options: Any) -> Ahead:
    return kind(drafter=model(), **options)


def parts_of(verifier: Verifier, drafter: Ahead, threads: Threads | None = None) -> Parts:
    target = TableTarget(vocab=3, order=2, seed=0)
    drafter.bind(target)
    return Parts(target, drafter, None, verifier, threads=threads)


def emission(verifier: type[Any], make: Callable[[], Ahead], length: int = 4, **options: Any) -> Emission:
    return Emission("", lambda: parts_of(verifier(), make()), WARM, length, (0, 1, 2, 0, 1), **options)


def decoded(parts: Parts, count: int = 200, sampling: Sampling = WARM, clock: Clock | None = None) -> list[list[int]]:
    """The new tokens of so many prompts, eight at a time."""
    prompts = [[(3 * i + j * j) % 3 for j in range(2 + i % 5)] for i in range(count)]
    requests = [
        Request(tokens=prompt, sampling=sampling, seed=row_seed(5, row), max_new_tokens=8 + row % 7)
        for row, prompt in enumerate(prompts)
    ]
    session = Session(parts, 8, 40 + parts.nodes, clock=clock)
    return [entry.tokens for entry in session.run(requests)]


@pytest.mark.parametrize("guesses", [None, 1, 2])
def test_conformance_of_chains_of_top_tokens(guesses: int | None) -> None:
    check_drafter(lambda: ahead(window=2, guesses=guesses))


@pytest.mark.sampled
def test_conformance_of_drawn_chains() -> None:
    check_drafter(lambda: ahead(window=1, draw=Draw.IID))


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Match, Recursive, Block])
@pytest.mark.parametrize(("guesses", "window"), [(None, 1), (1, 1)])
def test_the_law_of_drawn_chains(verifier: type[Any], guesses: int | None, window: int) -> None:
    found = emission(verifier, lambda: ahead(window=window, guesses=guesses, draw=Draw.IID)).compare(budget=200_000)
    assert found.tv < NOISE and found.enumeration.exhausted


@pytest.mark.sampled
def test_the_distribution_of_what_was_drawn_ahead_is_recorded() -> None:
    def parts() -> Parts:
        return parts_of(Match(), ahead(window=2, guesses=1, draw=Draw.IID))

    found = audit_drafts(parts, WARM, prompt=(0, 1, 2, 0, 1))
    assert found.passed and found.slots > 3


def test_control_one_random_number_for_two_verifications() -> None:
    """PEARL's code tests the next token with the number that accepted the last one: 1.0 in place of .5."""
    differed: list[bool] = []
    found = emission(
        Recursive,
        lambda: ahead(window=1, draw=Draw.IID),
        streams=lambda forks: ReplayedStreams(ForkedStreams(forks), Captured(differed)),
    ).compare(budget=20_000)
    assert any(differed) and found.tv > 0.01


class Keeping(Ahead):
    """It keeps a chain although the token before it was refused."""

    def commit(self, committed: Committed) -> None:
        drafted = self._drafted
        super().commit(committed)
        if committed.prompt is None and drafted is not None:
            tokens, valid = drafted.chains.tokens[:, :, 0], drafted.chains.valid[:, :, 0]
            self._ready = Chains(tokens, valid)


def fresh_chains(kind: type[Ahead]) -> tuple[int, int]:
    """The number of drafts with a chain, and of those that the drafter itself drafts there, of a batch of one row."""
    drafter, alone = ahead(kind, window=2, guesses=1), model()
    parts = parts_of(Match(), drafter)
    alone.bind(parts.target)
    alone.open(1, 80)
    found = [0, 0]

    def compare(cycle: Any) -> None:
        if cycle.draft.levels:
            wanted = alone.propose(cycle.draft.tokens[:, 0], Chain(depth=2), CONTEXT)
            found[0] += 1
            found[1] += torch.equal(wanted.tokens, cycle.draft.tokens)
        alone.commit(cycle.committed)

    session = Session(parts, 1, 60 + parts.nodes, watch=compare)
    session.run([Request(tokens=[0, 1, 2], sampling=WARM, seed=3, max_new_tokens=50)])
    return found[0], found[1]


def test_a_chain_that_is_ready_is_the_one_that_would_be_drafted_now() -> None:
    chains, same = fresh_chains(Ahead)
    assert chains == same > 5


def test_control_a_chain_kept_though_the_token_before_it_was_refused() -> None:
    chains, same = fresh_chains(Keeping)
    assert same < chains


class Sleepy(Ahead):
    """It sleeps before, within and after its work."""

    chance = Random(0)

    def run_ahead(self, draft: TokenTree, context: Context) -> None:
        sleep(self.chance.choice([0, 0, 0.002]))
        super().run_ahead(draft, context)
        sleep(self.chance.choice([0, 0, 0.002]))


class Inline(Alongside):
    """No second thread: what is drafted ahead is drafted before the target scores."""

    @contextmanager
    def drafting(self, draft: TokenTree, context: Context) -> Iterator[None]:
        assert isinstance(self._drafter, AheadDrafter)
        self._drafter.run_ahead(draft, context)
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
    monkeypatch.setattr(sessions, "Alongside", Inline)
    assert tokens() == two


class Late(Alongside):
    """Its thread is joined by `Joining`, after the verification."""

    running: threading.Thread | None = None

    @contextmanager
    def drafting(self, draft: TokenTree, context: Context) -> Iterator[None]:
        assert self._drafter is not None
        Late.running = threading.Thread(target=self._run, args=(self._drafter, draft, context))
        Late.running.start()
        yield


class Joining(Match):
    """The rule `match`, after which the drafter's thread is joined; before it, too, if that has begun by then."""

    needs = Needs()

    def verify_on_demand(self, tree: TokenTree, laws: Any, random: Any) -> Any:
        running, Late.running = Late.running, None
        if running is not None and Sleepy.chance.random() < 0.5:
            running.join()
        verdict = super().verify_on_demand(tree, laws, random)
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
    monkeypatch.setattr(sessions, "Alongside", Late)
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


def test_time_aside_is_no_time_of_the_loop() -> None:
    clock = Clock()
    with clock.phase("session"):
        decoded(parts_of(Match(), ahead(Sleepy, window=2)), 8, clock=clock)
    aside, waited = clock.seconds["aside"], clock.seconds["wait"]
    assert clock.calls["aside"] == clock.calls["score"] and clock.hidden == max(aside - waited, 0) > 0
    assert clock.seconds["wait"] < clock.cycles


def test_the_window_is_the_ratio_of_the_speeds() -> None:
    drafter = ahead(most=6)
    seconds = {1: 9.0, 8: 12.0}
    for draft, window in ((2.0, 4), (0.5, 6), (20.0, 1), (0.0, 6)):
        assert drafter._window(Costs.of(seconds, draft)) == window
    assert drafter._window(None) == 4 and ahead(most=2)._window(None) == 2 and ahead(window=3)._window(None) == 3


def test_what_is_refused() -> None:
    for options in ({"window": 0}, {"guesses": 0}, {"most": 0}):
        with pytest.raises(InputError, match="a window and guesses of at least 1"):
            ahead(**options)
    with pytest.raises(InputError, match="drawn `top` or `iid`"):
        ahead(draw=Draw.WITHOUT_REPLACEMENT)
    with pytest.raises(CompositionError, match="cannot run the target's own layers"):
        Ahead(drafter=OwnLayers(exit=1))
    with pytest.raises(CompositionError, match="cannot run the target's own layers"):
        Ahead(drafter=ModelDrafter(model="zoo://talk-7m", layers=[0]))
    with pytest.raises(CompositionError, match="builds its own trees"):
        Ahead(drafter=Lookup())
    with pytest.raises(CompositionError, match="drafts no deeper than 3 levels, and a chain behind a chain needs 9"):
        Ahead(drafter=ModelDrafter(model="zoo://talk-7m", masks=2), window=4)
    with pytest.raises(CompositionError, match="stands alone"):
        Fused(first=ahead(), second=Lookup())
    with pytest.raises(InputError, match="put the drafter into `ahead`"):
        threads_of({"target": 1, "drafter": 1}, Lookup())


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        ({"target": 1}, "each at least 1"),
        ({"target": 0, "drafter": 1}, "each at least 1"),
        ({"target": 4096, "drafter": 1}, "cores"),
    ],
)
def test_numbers_of_threads(threads: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunSettings(threads=threads)
