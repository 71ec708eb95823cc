"""The array of contexts against a literal search, and the store around it: files, appends, and what can go wrong."""

from __future__ import annotations

import errno
import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import InputError
from specframe_text.retrieval import corpus
from specframe_text.retrieval.context_array import REACH, SEPARATOR, ContextArray
from specframe_text.retrieval.corpus import Corpus, build
from tests.tiers import examples

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


@examples(2)
@given(texts=TEXTS)
def test_places_are_in_order_of_what_stands_before_them(texts: list[list[int]]) -> None:
    array = ContextArray.build(texts)
    assert array.tokens.tolist() == [token for text in texts if text for token in (*text, SEPARATOR)]
    assert_in_order(array)


def assert_in_order(array: ContextArray) -> None:
    """Every place once, by its text's tokens up to there, read backwards."""
    tokens = array.tokens.tolist()
    assert sorted(array.order.tolist()) == list(range(len(tokens)))
    contexts = [tokens[max(place + 1 - REACH, 0) : place + 1][::-1] for place in array.order.tolist()]
    own = [context[: [*context, SEPARATOR].index(SEPARATOR) + 1] for context in contexts]
    assert own == sorted(own)


@examples(2)
@given(texts=TEXTS, parts=st.integers(1, 4))
def test_arrays_are_joined_in_order(texts: list[list[int]], parts: int) -> None:
    arrays = [ContextArray.build(texts[number::parts]) for number in range(parts)]
    joined = ContextArray.join(arrays)
    assert joined.tokens.tolist() == [token for array in arrays for token in array.tokens.tolist()]
    assert_in_order(joined)
    tokens = joined.tokens.tolist()
    contexts = [tokens[max(place + 1 - REACH, 0) : place + 1][::-1] for place in joined.order.tolist()]
    assert contexts == sorted(contexts)


@examples(3)
@given(texts=TEXTS, dropped=st.integers(1, 60), tail=TAIL, length=st.integers(1, 5))
def test_of_an_array_that_is_cut_the_last_texts_are_found(
    texts: list[list[int]], dropped: int, tail: list[int], length: int
) -> None:
    array = ContextArray.build([[0], *texts]).without(dropped)
    assert_in_order(array)
    kept = [text for text in [[0], *texts] if text]
    while dropped > 0 and kept:
        dropped -= len(kept.pop(0)) + 1
    match = array.find(tail)
    rows = array.after(match, length=length, limit=1000) if match.length else []
    found = [row[: row.index(SEPARATOR)] if SEPARATOR in row else row for row in rows]
    assert (match.length, sorted(found)) == literal(kept, tail, length)


@examples(2)
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


@pytest.mark.parametrize("memory", [True, False])
def test_appends_stay_in_few_arrays(memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the logarithm of the size to base two, however many appends there were."""
    monkeypatch.setattr(corpus, "SMALL", 20)
    build(tmp_path, [[0, 1, 2] * 50], TableTarget(vocab=3))
    store = Corpus(path=None if memory else tmp_path)
    store.bind(TableTarget(vocab=3))
    total, most = len(store), 0
    for number in range(400):
        store.append([[2, 1, 0, *[number % 3] * (number % 40)]])
        total += 4 + number % 40
        sizes = list(map(len, store._arrays.values()))
        assert sum(sizes) == total
        assert all(larger >= max(2 * smaller, 20) for larger, smaller in pairwise(sizes))
        most = max(most, len(sizes))
    assert 5 <= most <= 10
    assert store.find([2, 1, 0], length=1, limit=999).match == 3
    if not memory:
        assert len(Corpus(path=tmp_path)) == total
        assert len(list(tmp_path.glob("*.tokens.npy"))) == len(store._arrays)


@pytest.mark.parametrize("memory", [True, False])
def test_a_limit_drops_the_oldest_texts(memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SMALL", 20)
    target = TableTarget(vocab=1_000, order=1)
    build(tmp_path, [[number, number + 1] * 50 for number in range(8)], target)
    store = Corpus(path=None if memory else tmp_path, limit=1_000)
    store.bind(target)
    for number in range(100, 400):
        store.append([[number, number, number - 1]])
        if number >= 350:
            assert 800 <= len(store) <= 1_000
            assert store.find([number, number], length=9, limit=9).tokens == [[number - 1]]
            assert store.find([number - 190, number - 190], length=9, limit=9).tokens == [[number - 191]]
    assert len(store._arrays) <= 10
    for gone in (0, 1, 120):
        assert store.find([gone, gone], length=1, limit=9).match == 0, "an old text is still there"
    store.append([[number, 7] for number in range(500, 900)] + [list(range(400, 998))])
    assert 500 < len(store) <= 1_000, "of a text that is longer than half the limit its end is kept"
    assert store.find([995, 996], length=9, limit=9).tokens == [[997]]
    if not memory:
        assert len(Corpus(path=tmp_path)) == len(store)


def test_a_limit_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="a store needs a limit of at least 1000 tokens, got 10"):
        Corpus(limit=10)


def test_a_process_that_is_killed_while_it_appends_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it had written of a merged array: the index counts, and the next append takes the rest away."""
    build(tmp_path, [[0, 1]], TableTarget(vocab=3))
    for stop in (np.save, os.replace):
        count = len(Corpus(path=tmp_path))
        store = Corpus(path=tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(*((np, "save") if stop is np.save else (os, "replace")), killed)
            with pytest.raises(KeyboardInterrupt):
                store.append([[2, 2]])
        assert len(Corpus(path=tmp_path)) == count
        Corpus(path=tmp_path).append([[2, 0]])
        assert len(Corpus(path=tmp_path)) == count + 3
        named = json.loads((tmp_path / "store.json").read_text())["segments"]
        assert len(list(tmp_path.glob("*.npy"))) == 2 * len(named)


def killed(*given: object) -> None:
    raise KeyboardInterrupt


def test_two_processes_append_to_one_folder(tmp_path: Path) -> None:
    build(tmp_path, [[0, 1]], TableTarget(vocab=3))
    one, other = Corpus(path=tmp_path), Corpus(path=tmp_path)
    one.append([[2, 2, 1]])
    other.append([[1, 1, 2]])
    assert other.find([2, 2], length=1, limit=9).tokens == [[1]]
    assert Corpus(path=tmp_path).find([1, 1], length=1, limit=9).tokens == [[2]]
    assert one.find([0], length=1, limit=9).tokens == [[1]], "files that it reads from were replaced"


def test_a_store_that_is_made_again_under_its_readers(tmp_path: Path) -> None:
    """An open store stays as it was, whole; an append joins the new texts."""
    build(tmp_path, [[0, 1, 0]], TableTarget(vocab=3))
    store = Corpus(path=tmp_path)
    assert store.find([0], length=1, limit=9).tokens == [[1], []]
    build(tmp_path, [[0, 2, 0]], TableTarget(vocab=3))
    assert store.find([0], length=1, limit=9).tokens == [[1], []]
    store.append([[2, 2]])
    for each in (store, Corpus(path=tmp_path)):
        assert each.find([0], length=1, limit=9).tokens == [[2], []]
        assert len(each) == 7


def test_an_append_opens_no_array_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SMALL", 2)
    build(tmp_path, [[0, 1, 2] * 10], TableTarget(vocab=3))
    store = Corpus(path=tmp_path)
    store.append([[2, 2]])
    opened: list[Path] = []
    loaded = np.load
    monkeypatch.setattr(np, "load", lambda path, **options: (opened.append(path), loaded(path, **options))[1])
    store.append([[2, 1]])
    assert not opened and len(store) == 31 + 3 + 3
    other = Corpus(path=tmp_path)
    other.append([[1]])
    opened.clear()
    store.append([[0] * 10])
    assert len(opened) == 2, "the array of the other process, and no other"
    assert len(store) == 31 + 3 + 3 + 2 + 11


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
