"""Entries wait where no draft is asked for: a later draft is that of a session that took them in at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.components.trees.fixed import Fixed
from specframe.kernel.types import Committed, Context, Prompts
from specframe.neural.rows import MOST, RowSession
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import tiny_target
from specframe_eagle.drafter import Eagle
from specframe_falcon.drafter import Falcon

VOCAB = 12
MAKE = {"eagle": Eagle, "falcon": Falcon}


class Follower:
    """A drafter, and the rows that it was given."""

    def __init__(self, name, slots=4):
        self.target = tiny_target(vocab=VOCAB, dtype=torch.float64)
        self.drafter = MAKE[name]()
        self.drafter.bind(self.target)
        self.drafter.open(slots, 256)
        self.rows = 0

    @property
    def session(self) -> RowSession:
        return self.drafter._session

    def commit(self, counts, seed, prompt):
        found = torch.Generator().manual_seed(seed)
        longest = max(counts)
        tokens = torch.randint(VOCAB, (len(counts), longest), generator=found)
        width = self.target.config.hidden_size
        features = torch.randn(len(counts), longest, width, generator=found, dtype=torch.float64)
        length = torch.tensor(counts)
        prompts = Prompts(tokens, length) if prompt else None
        root = tokens[torch.arange(len(counts)), length - 1]
        tap = next(iter(self.drafter.taps))
        self.drafter.commit(Committed(tokens, length, {tap: features}, root, prompts))
        self.rows += len(counts) if prompt else 0

    def keep(self, rows):
        self.drafter.keep(torch.tensor(rows, dtype=torch.int64))
        self.rows = len(rows)

    def draft(self):
        context = Context(Sampling(), SeededRandom(0, self.rows))
        return self.drafter.propose(torch.arange(self.rows) % VOCAB, Fixed(widths=(2, 1)), context)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("cycle"), st.lists(st.integers(1, 5), min_size=4, max_size=4)),
        st.tuples(st.just("join"), st.lists(st.integers(1, 9), min_size=1, max_size=2)),
        st.tuples(st.just("keep"), st.permutations(range(4)).flatmap(lambda p: st.just(p))),
        st.tuples(st.just("draft"), st.just([])),
    ),
    max_size=12,
)


@pytest.mark.parametrize("name", sorted(MAKE))
@settings(deadline=None)
@given(steps=STEPS)
def test_a_draft_is_that_of_a_session_that_never_waits(name, steps):
    lazy, eager = Follower(name), Follower(name)
    for one in (lazy, eager):
        one.commit([3, 5], 0, prompt=True)
        one.commit([1, 2], 1, prompt=False)
    for number, (step, given_) in enumerate([*steps, ("draft", [])]):
        for one in (lazy, eager):
            if step == "cycle":
                one.commit(given_[: one.rows], number, prompt=False)
            elif step == "join" and one.rows + len(given_) <= 4:
                one.commit(given_, number, prompt=True)
                one.commit([1] * one.rows, 100 + number, prompt=False)
            elif step == "keep":
                one.keep([row for row in given_ if row < one.rows][: max(1, one.rows - 1)])
            if one is eager:
                one.session.flush()
        if step == "draft":
            late, early = lazy.draft(), eager.draft()
            assert torch.equal(late.tokens, early.tokens)
            assert lazy.session.counts == eager.session.counts


def calls(session):
    """Counts how often the session takes entries in."""
    taken, take = [], session.take

    def counted(pending):
        taken.append(pending.pairs[0].shape[:2])
        return take(pending)

    session.take = counted
    return taken


def test_rows_that_leave_before_a_draft_are_never_read():
    one = Follower("eagle")
    taken = calls(one.session)
    one.commit([6], 0, prompt=True)
    one.commit([1], 1, prompt=False)  # no draft was asked for
    for number in range(2, 8):
        one.commit([4], number, prompt=True)
        one.commit([1, 1], 10 + number, prompt=False)
        one.keep([0])
    assert not taken
    one.draft()
    assert taken == [(1, 13)]


def test_where_drafts_are_asked_for_a_prompt_does_not_wait_with_others():
    one = Follower("eagle")
    taken = calls(one.session)
    one.commit([6], 0, prompt=True)
    one.draft()
    one.commit([2], 1, prompt=False)
    one.commit([9], 2, prompt=True)
    one.draft()
    assert taken == [(1, 6), (1, 2), (1, 9)], "no rectangle of two rows and nine entries"


def test_what_waits_is_bounded():
    one = Follower("eagle")
    taken = calls(one.session)
    one.commit([100, 100], 0, prompt=True)
    for number in range(MOST // 100):
        one.commit([50, 50], number, prompt=False)
    assert taken and max(rows * entries for rows, entries in taken) <= MOST


def test_a_long_prompt_does_not_wait_with_rows_of_few_entries():
    one = Follower("eagle", slots=8)
    taken = calls(one.session)
    one.commit([2] * 7, 0, prompt=True)
    one.draft()
    one.commit([1] * 7, 1, prompt=False)
    one.commit([1] * 7, 2, prompt=False)  # no draft was asked for
    one.commit([200], 3, prompt=True)
    one.commit([1] * 8, 4, prompt=False)
    one.draft()
    assert taken == [(7, 2), (7, 2), (1, 200), (8, 1)], "no rectangle of eight rows and 201 entries"


def test_nothing_is_fused_until_a_draft_is_asked_for(monkeypatch):
    one = Follower("eagle")
    fuse, fused = type(one.drafter.network).fuse, []
    monkeypatch.setattr(type(one.drafter.network), "fuse", lambda self, x: fused.append(x.shape[1]) or fuse(self, x))
    one.commit([4], 0, prompt=True)
    for number in range(1, 5):
        one.commit([2], number, prompt=False)
    assert not fused
    one.draft()
    assert fused == [12]
