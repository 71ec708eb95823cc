"""Lookahead decoding: its window against the paper's, its pool, and its tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.components.drafters.trie import Trie
from specframe.kernel.errors import InputError
from specframe.testing import check_drafter, check_plugin
from specframe_text.lookahead.lookahead import Lookahead, NgramPool, Window, find_paths


def after(path: list[int]) -> int:
    """A target's likeliest token after a path: any function of the whole path will do."""
    return (31 * sum((place + 1) * (token + 3) for place, token in enumerate(path)) + 7) % 11


def path_of(trie: Trie, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, trie.tokens[node])
        node = trie.parents[node]
    return path


def literal(rows: list[list[int]], root: int) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """One step as the authors' code does it: rows after the step, and the n-grams of its columns.

    A cell of generation l sees generation 0 up to its column and its own column of the generations between.
    """
    width = len(rows[-1]) if len(rows) > 1 else len(rows[0]) + 1
    first = [root, *rows[0]]
    latest = []
    for column in range(width):
        latest.append(after([*first[: column + 1], *(row[column] for row in rows[1:])]))
    ngrams = [(first[i], *(row[i] for row in rows[1:]), latest[i]) for i in range(width)]
    rows = [*rows[1:], latest]
    return [rows[0][1:], *rows[1:]], ngrams


@given(
    prompt=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    ngram=st.integers(2, 5),
    width=st.integers(1, 5),
    roots=st.lists(st.integers(0, 9), min_size=1, max_size=8),
)
def test_the_window_is_the_authors(prompt: list[int], ngram: int, width: int, roots: list[int]) -> None:
    window = Window(prompt, ngram=ngram, width=width)
    cells = [prompt[-1 - place % len(prompt)] for place in range((ngram - 1) * width)]
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    rows[0] = rows[0][1:]
    for root in roots:
        trie = Trie(root)
        ends = [trie.add_path(path) for path in window.paths()]
        assert find_paths(window.paths(), trie.tokens, trie.parents, [True] * len(trie)) == ends
        assert len(trie) <= 1 + (width - 1) + (ngram - 2) * width
        found = window.advance(root, [after(path_of(trie, node)) for node in ends])
        rows, ngrams = literal(rows, root)
        assert [(token, *later) for token, later in found] == ngrams


def test_the_pool_keeps_the_ngrams_seen_last() -> None:
    pool = NgramPool(length=3, most=2)
    pool.add_text([1, 2, 3, 1, 4, 5, 1, 2, 3])
    assert pool.after(1) == [(2, 3), (4, 5)]
    pool.add(1, (6, 6))
    assert pool.after(1) == [(6, 6), (2, 3)]
    assert pool.after(2) == [(3, 1)] and pool.after(9) == []


def test_conformance() -> None:
    check_drafter(lambda: Lookahead(ngram=3, window=2, guesses=2))
    check_drafter(lambda: Lookahead(ngram=2, window=1, guesses=1, text=False))


def test_options_are_checked() -> None:
    assert Lookahead(ngram=5, window=7, guesses=7).promise.nodes == 56
    for options in ({"ngram": 1}, {"window": 0}, {"guesses": 0}):
        with pytest.raises(InputError, match="lookahead needs ngram of at least 2"):
            Lookahead(**options)


def test_the_package_keeps_the_contract_of_plugins() -> None:
    check_plugin("specframe-text")
