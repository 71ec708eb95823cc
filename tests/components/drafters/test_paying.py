"""Copies after another drafter's draft: left out where they lately cost more than they brought."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specframe.components.drafters.fused import Fused
from specframe.components.drafters.trie import Trie, as_tree
from specframe.kernel.capabilities import Promise
from specframe.kernel.costs import Costs
from specframe.kernel.interfaces import TreePolicy
from specframe.kernel.types import Committed, Context, Draw, TokenTree
from tests.components.path_drafter import assert_sound, path
from tests.components.sessions import CONTEXT, first, later

COSTS = Costs.of({1: 1.0, 11: 2.0})
"""Every node costs a tenth of what a token takes that is not drafted."""
MODEL, COPY = [5], [7, 8]
ALONE, FUSED = [(5,)], [(5,), (7,), (7, 8)]
Drafts = list[list[tuple[int, ...]]]


class Given:
    """Drafts the same tokens below every root."""

    taps: frozenset[str] = frozenset()
    promise = Promise(frozenset({Draw.TOP}), nodes=9)

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        tries = [Trie(token) for token in root.tolist()]
        for trie in tries:
            trie.add_path(self.tokens)
        return as_tree(root, tries)

    def continued(self, paths: list[list[int]]) -> list[list[int]]:
        return [[9] for _ in paths]

    def open(self, slots: int, room: int) -> None: ...

    def commit(self, committed: Committed) -> None: ...

    def keep(self, rows: Tensor) -> None: ...


def fused(copy: list[int] = COPY, tail: int = 0) -> Fused:
    return Fused(first=Given(MODEL), second=Given(copy), tail=tail)  # type: ignore[arg-type]


class Rows:
    """Texts that come true while a drafter drafts them: accepted is what is drafted of them."""

    def __init__(self, drafter: Fused, texts: list[list[int]], costs: Costs | None = COSTS) -> None:
        self.drafter, self.texts, self.costs = drafter, texts, costs
        self.places = [2] * len(texts)
        drafter.open(len(texts), 99)
        drafter.commit(first([text[:2] for text in texts]))

    def step(self) -> Drafts:
        """Each row's draft, in the tree's order, and whether the tree is no wider than the widest of them."""
        roots = torch.tensor([text[place - 1] for text, place in zip(self.texts, self.places, strict=True)])
        tree = self.drafter.propose(roots, None, replace(CONTEXT, costs=self.costs))
        assert_sound(tree, tree.levels)
        assert tree.valid[:, -1].any(), "columns that no row has would be scored all the same"
        drafts, gained = [], []
        for row, (text, place) in enumerate(zip(self.texts, self.places, strict=True)):
            found = [path(tree, row, node)[1:] for node in range(1, tree.tokens.shape[1]) if tree.valid[row, node]]
            right = max((len(each) for each in found if list(each) == text[place : place + len(each)]), default=0)
            drafts.append(found)
            gained.append(text[place : place + right + 1])
            self.places[row] += right + 1
        self.drafter.commit(later(gained))
        return drafts

    def keep(self, rows: list[int]) -> None:
        self.drafter.keep(torch.tensor(rows))
        self.texts, self.places = ([each[row] for row in rows] for each in (self.texts, self.places))


CHANGING = [0, 1, 2, 5, 3, 7, 7, 8, 4, 7, 8, 6, *[9] * 30]
PLAIN = [0, 1, *[9] * 50]
COPIED = [0, 1, *[7, 8, 6] * 20]


def test_copies_that_do_not_pay_are_left_out_until_one_would_be_right() -> None:
    rows = Rows(fused(), [CHANGING])
    drafts = [rows.step()[0] for _ in range(25)]
    assert drafts[:3] == [FUSED, ALONE, ALONE], "2 was not copied; then 5 3 came, and 7, which was in the copy"
    assert drafts[3:5] == [FUSED, FUSED], "7 8 4 and 7 8 6"
    paid = drafts[5:].index(ALONE)
    assert 1 < paid < 15, "what the copies brought pays for some cycles of 9"
    assert drafts[5 + paid :] == [ALONE] * (20 - paid)


def test_what_pays_stays_and_without_costs_nothing_is_left_out() -> None:
    rows = Rows(fused(), [COPIED])
    assert all(rows.step()[0] == FUSED for _ in range(15))
    rows = Rows(fused(), [PLAIN], costs=None)
    assert all(rows.step()[0] == FUSED for _ in range(15))
    rows = Rows(fused(copy=MODEL), [PLAIN])
    assert all(rows.step()[0] == ALONE for _ in range(5)), "a copy of the draft itself costs nothing"


def test_a_tail_is_left_out_and_comes_back_as_copies_do() -> None:
    rows = Rows(fused(copy=MODEL, tail=1), [[0, 1, 2, 3, 5, 9, 5, 9, 5, 9, 5, 9, 5, 9]])
    drafts = [rows.step()[0] for _ in range(4)]
    assert drafts == [[(5,), (5, 9)], ALONE, ALONE, [(5,), (5, 9)]]


def test_a_row_of_a_batch_drafts_as_it_would_alone() -> None:
    texts = [CHANGING, PLAIN, COPIED]
    alone = [[rows.step()[0] for _ in range(8)] for rows in (Rows(fused(), [text]) for text in texts)]
    together = Rows(fused(), texts)
    drafts = [together.step() for _ in range(3)]
    together.keep([2, 0])
    assert [[step[row] for step in drafts] for row in range(3)] == [found[:3] for found in alone]
    drafts = [together.step() for _ in range(5)]
    assert [[step[row] for step in drafts] for row in range(2)] == [alone[2][3:], alone[0][3:]]
    together.drafter.commit(first([PLAIN[:2]]))
    together.texts, together.places = [*together.texts, PLAIN], [*together.places, 2]
    assert together.step()[2] == FUSED, "a new row knows nothing of the others"
