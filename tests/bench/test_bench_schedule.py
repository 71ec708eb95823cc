import json
from collections import Counter

import pytest

from specframe.bench.contest import timing
from specframe.bench.contest.datasets import Question
from specframe.bench.contest.outcome import describe, require_sound, token_quantiles
from specframe.bench.contest.settings import plan_rounds, take_turns
from specframe.bench.contest.timing import Accounts, Timed
from specframe.bench.journal import Journal
from specframe.files.folders import make_folder
from specframe.kernel.contestant import Outcome
from specframe.kernel.errors import InputError, SpecframeError


def test_every_contestant_holds_every_place_equally_often():
    names = ["a", "b", "c", "d"]
    places = Counter((name, place) for i in range(40) for place, name in enumerate(take_turns(names, i, seed=0)))
    assert set(places.values()) == {10} and len(places) == 16


def test_neighbours_change_and_the_seed_decides():
    names = ["a", "b", "c", "d"]
    orders = [tuple(take_turns(names, i, seed=0)) for i in range(40)]
    assert len({order[order.index("a") - 1] for order in orders}) > 1  # not one rotation for ever
    assert orders == [tuple(take_turns(names, i, seed=0)) for i in range(40)]
    assert orders != [tuple(take_turns(names, i, seed=1)) for i in range(40)]


def question(name, turns):
    return Question(name, "s", "t", tuple("x" * turns))


def test_rounds_cover_all_and_a_batch_has_equal_turns():
    questions = [question("a", 2), question("b", 1), question("c", 3), question("d", 1), question("e", 1)]
    rounds = plan_rounds(questions, batch=2, repeats=3, turns=2)
    assert [entry.index for entry in rounds] == list(range(len(rounds)))
    assert len({entry.key for entry in rounds}) == len(rounds) == 9
    for repeat in range(3):
        ids = [q.id for entry in rounds if entry.repeat == repeat for q in entry.questions]
        assert sorted(ids) == list("abcde")
    assert {(tuple(q.id for q in entry.questions), entry.turns) for entry in rounds} == {
        (("b", "d"), 1),
        (("e",), 1),
        (("a", "c"), 2),
    }


def test_token_quantiles_share_a_chunks_time():
    # The first chunk is the prefill's; then 4 tokens after 2 s, then 1 after 3 s.
    assert token_quantiles([1.0, 3.0, 3.0, 3.0, 3.0, 6.0]) == [0.5, 3.0]
    assert token_quantiles([1.0, 1.0]) == [None, None]


def test_rows_decoded_together_share_the_time_by_their_tokens():
    timed = Timed(
        Outcome([[1, 2, 3], [4]], [[11, 12, 13], [11.5]]), start=10, began=1e9, seconds=4.0, peak_memory_bytes=None
    )
    first, second = describe(timed)
    assert (first["seconds"], second["seconds"]) == (3.0, 1.0)
    assert (first["first_token_seconds"], second["first_token_seconds"]) == (1, 1.5)
    assert first["bench_seconds"] > 0 and first["began"] == 1e9


@pytest.mark.parametrize(
    ("tokens", "arrivals", "words"),
    [
        ([[1]], [[0.0]], "1 rows for 2"),
        ([[1], []], [[0.0], []], "0 tokens"),
        ([[1], [1] * 5], [[0.0], [0.0] * 5], "5 tokens"),
        ([[1], [99]], [[0.0], [0.0]], "vocabulary"),
        ([[1], [-1]], [[0.0], [0.0]], "vocabulary"),
        ([[1], [2, 2]], [[0.0], [0.0]], "arrival"),
    ],
)
def test_outcomes_that_cannot_be(tokens, arrivals, words):
    with pytest.raises(SpecframeError, match=words):
        require_sound(Outcome(tokens, arrivals), rows=2, budget=4, vocabulary=10)


def test_a_journal_goes_on_where_it_was_cut_off(tmp_path):
    journal = Journal.open(tmp_path, {"a": 1})
    journal.append({"round": 0})
    journal.append({"round": 1})
    text = journal.path.read_text()
    journal.path.write_text(text + '{"round": 2, "ru')
    again = Journal.open(tmp_path, {"a": 1})
    assert again.rounds == [{"round": 0}, {"round": 1}]
    assert again.path.read_text() == text
    again.append({"round": 2})
    assert Journal.open(tmp_path, {"a": 1}).rounds[-1] == {"round": 2}


def test_a_journal_of_another_bench_is_left_alone(tmp_path):
    journal = Journal.open(tmp_path, {"a": 1})
    journal.append({"round": 0})
    with pytest.raises(InputError, match=r"--out, or --fresh"):
        Journal.open(tmp_path, {"a": 2})
    assert Journal.open(tmp_path, {"a": 1}).rounds == [{"round": 0}]
    assert Journal.open(tmp_path, {"a": 2}, fresh=True).rounds == []


def test_a_journal_with_a_broken_line_inside(tmp_path):
    journal = Journal.open(tmp_path, {})
    journal.append({"round": 0})
    journal.path.write_text(journal.path.read_text() + "no JSON\n")
    with pytest.raises(InputError, match=r"runs\.jsonl:3"):
        Journal.open(tmp_path, {})


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path, {})
    journal.append({"round": 0})
    monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SpecframeError, match=r"No space left on device; the same command resumes after 1 rounds"):
        journal.append({"round": 1})
    assert json.loads(journal.path.read_text().splitlines()[1]) == {"round": 0}
    assert journal.rounds == [{"round": 0}]


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecframeError, match="give another --out"):
        make_folder(tmp_path / "file" / "out")


ALONE = Accounts(delay=5.0, busy=100.0, own=40.0, thread=30.0)


@pytest.mark.parametrize(
    ("later", "waited"),
    [
        (Accounts(5.0, 102.0, 42.0, 32.0), 0.0),  # no other process
        (Accounts(6.0, 103.0, 41.0, 31.0), 1.0),  # one thread among others: all of its delay is theirs
        (Accounts(6.0, 102.0, 42.0, 31.0), 0.0),  # a second thread of its own kept it waiting
        (Accounts(6.0, 105.0, 42.0, 31.0), 0.75),  # others had three seconds, that thread one
    ],
)
def test_waiting_is_what_other_processes_caused(later, waited):
    assert later.waited(ALONE) == pytest.approx(waited)


def test_a_system_without_accounts_has_no_waiting(monkeypatch):
    monkeypatch.setattr(timing, "_first_line", lambda path: "")
    assert Accounts.read() is None
