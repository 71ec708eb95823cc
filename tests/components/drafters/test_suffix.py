"""Suffix decoding in a session: rows join, grow and leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.components.drafters.automaton import SuffixAutomaton
from specframe.components.drafters.suffix import Suffix
from specframe.kernel.costs import Costs
from specframe.kernel.errors import InputError
from specframe.kernel.types import TokenTree
from specframe.testing import check_drafter
from tests.components.path_drafter import assert_sound
from tests.components.sessions import CONTEXT, first, later

TEXT = st.lists(st.integers(0, 3), min_size=2, max_size=24)


def drafted(drafter: Suffix, texts: list[list[int]]) -> list[list[int]]:
    """The real tokens below each row's root."""
    tree: TokenTree = drafter.propose(torch.tensor([text[-1] for text in texts]), None, CONTEXT)
    assert_sound(tree, tree.levels)
    assert tree.tokens.shape[1] <= (drafter.promise.nodes or 0)
    return [row[real][1:].tolist() for row, real in zip(tree.tokens, tree.valid, strict=True)]


@given(
    texts=st.lists(TEXT, min_size=2, max_size=2),
    joining=TEXT,
    tokens=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=3, max_size=3),
    rows=st.permutations([0, 1, 2]),
    kept=st.integers(1, 3),
)
def test_rows_join_grow_and_leave(
    texts: list[list[int]], joining: list[int], tokens: list[list[int]], rows: list[int], kept: int
) -> None:
    drafter = Suffix()
    drafter.commit(first([[1, 1, 2]] * 2))
    drafter.open(3, 99)  # forgets what was there
    drafter.commit(first(texts))
    drafter.commit(first([joining]))
    texts = [text + more for text, more in zip([*texts, joining], tokens, strict=True)]
    drafter.commit(later(tokens))
    assert drafted(drafter, texts) == [SuffixAutomaton(text).copy().tokens for text in texts]
    drafter.keep(torch.tensor(rows[:kept]))
    texts = [texts[row] for row in rows[:kept]]
    assert drafted(drafter, texts) == [SuffixAutomaton(text).copy().tokens for text in texts]


def test_conformance() -> None:
    check_drafter(lambda: Suffix(cap=3))


def test_options_are_checked() -> None:
    for options in ({"cap": 0}, {"doubt": -1.0}, {"least": 1.5}):
        with pytest.raises(InputError, match="suffix needs cap of at least 1"):
            Suffix(**options)


def test_a_copy_is_as_long_as_pays():
    """Counts make every further token of a copy less likely; where tokens cost little more are copied."""
    text = [5, 1, 2, 3, 4, 6, 7, 8, 5, 1, 2, 3, 4, 6, 7, 9, 5, 1]
    drafter, lengths = Suffix(), []
    drafter.open(1, 99)
    drafter.commit(first([text]))
    for slope in (0.0, 0.2, 0.5, 1.0):
        costs = Costs.of({1: 1.0, 11: 1.0 + 10 * slope})
        tree = drafter.propose(torch.tensor([1]), None, replace(CONTEXT, costs=costs))
        assert_sound(tree, tree.levels)
        chances = drafter._rows[0].copy().probabilities
        assert int(tree.valid.sum()) - 1 == costs.worth(chances)
        lengths.append(int(tree.valid.sum()) - 1)
    assert lengths[0] == len(drafter.copies(torch.tensor([1]))[0]) - 1 > lengths[-2] > lengths[-1] == 0
