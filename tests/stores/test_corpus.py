"""The array of contexts against a literal search, and the store around it: files, appends, and what can go wrong."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import InputError
from specframe.stores.context_array import REACH, SEPARATOR, ContextArray
from specframe.stores.corpus import Corpus, build

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=0, max_size=30), min_size=1, max_size=6)
TAIL = st.lists(st.integers(0, 2), max_size=24)


def literal(texts: list[list[int]], tail: list[int], length: int) -> tuple[int, list[list[int]]]:
    """The longest suffix of at most REACH tokens that occurs in a text, and what follows each occurrence, sorted."""
    for match in range(min(REACH, len(tail)), 0, -1):
        part = tail[-match:]
        ends = [(text, end) for text in texts for end in range(match, len(text) + 1) if text[end - match : end] == part]
        if ends:
            return match, sorted(text[end : end + length] for text, end in ends)
    return 0, []


@settings(max_examples=200, deadline=None)
@given(texts=TEXTS)
def test_places_are_in_order_of_what_stands_before_them(texts: list[list[int]]) -> None:
    array = ContextArray.build(texts)
    tokens = array.tokens.tolist()
    assert tokens == [token for text in texts if text for token in (*text, SEPARATOR)]
    assert sorted(array.order.tolist()) == list(range(len(tokens)))
    contexts = [tokens[max(place + 1 - REACH, 0) : place + 1][::-1] for place in array.order.tolist()]
    assert contexts == sorted(contexts)


@settings(max_examples=200, deadline=None)
@given(texts=TEXTS, batches=st.integers(1, 4), tail=TAIL, length=st.integers(1, 5))
def test_a_query_finds_every_occurrence(texts: list[list[int]], batches: int, tail: list[int], length: int) -> None:
    store = Corpus()
    store.bind(TableTarget(vocab=3))
    for number in range(batches):
        store.append(texts[number::batches])
    found = store.find(tail, length=length, limit=1000)
    assert (found.match, sorted(found.tokens)) == literal(texts, tail, length)
    assert len(store) == sum(len(text) + 1 for text in texts if text)


def test_of_many_occurrences_every_continuation_has_its_share() -> None:
    store = Corpus()
    store.bind(TableTarget(vocab=4))
    store.append([[1, 2, 0]] * 300 + [[1, 2, 3]] * 100)
    found = store.find([1, 2], length=1, limit=40)
    assert found.match == 2
    assert [found.tokens.count([token]) for token in (0, 3)] == [30, 10]


def test_appends_stay_in_few_arrays(tmp_path: Path) -> None:
    build(tmp_path, [[0, 1, 2] * 50], TableTarget(vocab=3))
    store = Corpus(path=tmp_path)
    for _ in range(100):
        store.append([[2, 1, 0]])
    assert len(Corpus(path=tmp_path)) == len(store) == 151 + 400
    assert len(list(tmp_path.glob("*.tokens.npy"))) <= 10
    assert Corpus(path=tmp_path).find([2, 1, 0], length=1, limit=9).match == 3


def test_two_processes_append_to_one_folder(tmp_path: Path) -> None:
    build(tmp_path, [[0, 1]], TableTarget(vocab=3))
    one, other = Corpus(path=tmp_path), Corpus(path=tmp_path)
    one.append([[2, 2, 1]])
    other.append([[1, 1, 2]])
    assert other.find([2, 2], length=1, limit=9).tokens == [[1]]
    assert Corpus(path=tmp_path).find([1, 1], length=1, limit=9).tokens == [[2]]
    assert one.find([0], length=1, limit=9).tokens == [[1]], "files that it reads from were replaced"


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, [[0, 1]], TableTarget(vocab=3))
    store = Corpus(path=tmp_path)
    written = np.save

    def full(path: Path, array: np.ndarray) -> None:
        if "order" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        written(path, array)

    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(InputError, match=r"^the store .* cannot be written: No space left .*; it is as it was before$"):
        store.append([[2, 2]])
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert store.find([2], length=1, limit=9).match == 0
    monkeypatch.undo()
    store.append([[2, 2]])
    assert len(Corpus(path=tmp_path)) == 6


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "store.json").unlink(), "there is no store in .*; make one with specframe store build"),
        (lambda f: (f / "store.json").write_text("{"), "is broken: .*; make it again"),
        (lambda f: (f / "store.json").write_text("[]"), "is broken: "),
        (lambda f: (f / "store.json").write_text('{"format": 2}'), "is broken: "),
        (lambda f: change(f / "store.json", format=7), "is a store of format 7, this release reads 2; make it again"),
        (lambda f: change(f / "store.json", segments={"0": 4}), "is broken: .*is not of 4 tokens"),
        (lambda f: change(f / "store.json", segments={}), "is empty; make it again"),
        (lambda f: (f / "0.order.npy").unlink(), "is broken: 0.order.npy is missing"),
        (lambda f: (f / "0.order.npy").write_bytes(b""), "is broken: "),
        (lambda f: (f / "0.tokens.npy").write_bytes((f / "0.tokens.npy").read_bytes()[:-4]), "is broken: "),
        (lambda f: np.save(f / "0.tokens.npy", np.array([None])), "is broken: "),
    ],
)
def test_a_damaged_store_is_refused_in_one_line(tmp_path: Path, damage, message: str) -> None:
    build(tmp_path, [[0, 1]], TableTarget(vocab=3))
    damage(tmp_path)
    with pytest.raises(InputError, match=message) as refused:
        len(Corpus(path=tmp_path))
    assert "\n" not in str(refused.value)


def test_damage_inside_an_array_proposes_no_foreign_token(tmp_path: Path) -> None:
    build(tmp_path, [[0, 1, 2, 0, 1, 2]], TableTarget(vocab=3))
    broken = np.load(tmp_path / "0.tokens.npy")
    broken[2] = 70_000
    np.save(tmp_path / "0.tokens.npy", broken)
    found = Corpus(path=tmp_path).find([0, 1], length=3, limit=9)
    assert all(token < 3 for row in found.tokens for token in row)


class Tokenizer:
    def __init__(self, words: dict[str, int]) -> None:
        self._words = words

    def get_vocab(self) -> dict[str, int]:
        return self._words


def test_a_store_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    mine, other = TableTarget(vocab=3), TableTarget(vocab=3)
    mine.tokenizer = Tokenizer({"a": 0, "b": 1})  # type: ignore[attr-defined]
    other.tokenizer = Tokenizer({"a": 1, "b": 0})  # type: ignore[attr-defined]
    build(tmp_path, [[0, 1]], mine)
    store = Corpus(path=tmp_path)
    store.bind(mine)
    for wrong in (other, TableTarget(vocab=4)):
        with pytest.raises(InputError, match="is of another tokenizer than the target's"):
            store.bind(wrong)


def test_no_text_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no text to store"):
        build(tmp_path, [[]], TableTarget(vocab=3))
    with pytest.raises(InputError, match="outside the target's vocabulary of 3"):
        build(tmp_path, [[3]], TableTarget(vocab=3))
