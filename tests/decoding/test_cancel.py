"""Rows that are cancelled within a cycle's callbacks: they leave as the cycle ends, the others keep their texts."""

import pytest
import torch

from specframe import Request, Session
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.none import NoDrafter
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts
from specframe.testing import tiny_target

PROMPTS = [[1, 2, 3, 1, 2], [4], [5, 6] * 6, [7, 8, 9]]
DRAFTERS = [NoDrafter, lambda: Lookup(ngram=1, length=3)]


def session_of(drafter, slots=3, watch=None):
    return Session(Parts(tiny_target(vocab=12, dtype=torch.float64), drafter(), None, Match()), slots, 64, watch=watch)


def requests(**callbacks):
    """A request for each prompt; `callbacks` are those of the first."""
    return [
        Request(tokens=prompt, max_new_tokens=9, number=row, **(callbacks if row == 0 else {}))
        for row, prompt in enumerate(PROMPTS)
    ]


def texts(drafter):
    return [entry.tokens for entry in session_of(drafter, 1).run(requests())]


def check(entries, wanted, cancelled):
    """Compares every row with its text alone: a cancelled one with the beginning."""
    for row, (entry, text) in enumerate(zip(entries, wanted, strict=True)):
        if row in cancelled:
            assert entry.ended == "cancelled" and entry.tokens == text[: len(entry.tokens)] != text
        else:
            assert entry.ended == "length" and entry.tokens == text


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 3])
def test_watch_cancels_a_row(drafter, row, length):
    def watch(cycle):
        for entry in session.cycle_rows:
            if entry.request.number == row and len(entry.tokens) >= length:
                session.cancel(entry)

    session = session_of(drafter, watch=watch)
    check(session.run(requests()), texts(drafter), {row})


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_listener_cancels_its_own_row_or_another(drafter, row):
    def listener(tokens):
        assert tokens
        rows = {entry.request.number: entry for entry in session.cycle_rows}
        if len(rows[0].tokens) >= 3 and row in rows:
            session.cancel(rows[row])

    session = session_of(drafter)
    rows = requests(listener=listener)[:3]
    check(session.run(rows), texts(drafter)[:3], {row})


@pytest.mark.parametrize("answer", [False, True])
def test_a_stop_test_cancels_its_row(answer):
    def stop(entry):
        if len(entry.tokens) >= 2:
            session.cancel(entry)
            return answer
        return False

    session = session_of(NoDrafter)
    entries = session.run(requests(stop=stop))
    check(entries, texts(NoDrafter), {0})
    assert len(entries[0].tokens) == 2


def test_a_row_is_cancelled_while_another_is_admitted():
    session = session_of(NoDrafter, slots=2)
    wanted = texts(NoDrafter)
    first, second = requests()[1], requests(listener=lambda tokens: session.cancel(earlier))[0]
    (earlier,) = session.admit([first])
    (later,) = session.admit([second])
    assert earlier.ended == "cancelled" and earlier.tokens == wanted[1][:1] and session.live == [later]
    while session.live:
        session.step()
    assert later.tokens == wanted[0]


def test_an_entry_of_another_session_is_left_alone():
    session, other = session_of(NoDrafter), session_of(NoDrafter)
    (mine,) = session.admit(requests()[:1])
    (theirs,) = other.admit(requests()[:1])
    other.cancel(mine)
    assert mine.ended is None and other.live == [theirs]
