"""EAGLE-2's tree, as much of it as pays: against the whole tree, cut by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from specframe.components.trees.dynamic import Dynamic
from specframe.kernel.costs import Costs, DraftRecord
from specframe.kernel.types import Context, TokenTree
from specframe.sampling.laws import Sampling
from tests.components.path_drafter import Path, PathDrafter, Ranked, assert_sound, path, path_drafters

ROOTS = torch.tensor([3, 0])
FREE = Costs.of({1: 1.0, 2: 1.0})
DEAR = Costs.of({1: 1.0, 2: 2.0})
"""A node takes the time of a token, so none pays."""


def grown(drafter: PathDrafter, costs: Costs | None, *, depth: int = 4, width: int = 3, nodes: int = 9) -> TokenTree:
    drafter.calls = 0
    tree = Dynamic(depth=depth, width=width, nodes=nodes).grow(
        drafter.expand, ROOTS, Context(Sampling(), Ranked(), costs)
    )
    assert_sound(tree, tree.levels)
    return tree


def paths_of(tree: TokenTree, row: int) -> set[Path]:
    """The paths of a row's drafted nodes."""
    return {path(tree, row, node) for node in range(1, tree.tokens.shape[1]) if tree.valid[row, node]}


def value(drafter: PathDrafter, nodes: Path) -> float:
    """The probability of a path at temperature 1."""
    value = 0.0
    for end in range(1, len(nodes)):
        value += float(drafter.at(nodes[:end]).log_softmax(-1)[nodes[end]])
    return float(torch.tensor(value).exp())


ROUNDING = 1e-6
"""A difference of gains in float32."""


@given(drafter=path_drafters(steps=(0.0, 0.7, 3.0)))
def test_what_costs_nothing_is_drafted_whole(drafter: PathDrafter):
    whole, paying = grown(drafter, None), grown(drafter, FREE)
    assert [paths_of(paying, row) for row in (0, 1)] == [paths_of(whole, row) for row in (0, 1)]


def test_where_nothing_pays_the_root_is_scored_alone():
    drafter = PathDrafter(5, 1)
    tree = grown(drafter, DEAR)
    assert tree.tokens.tolist() == [[3], [0]] and tree.levels == 0
    assert drafter.calls == 1  # no second level is drafted for that


@given(
    drafter=path_drafters(steps=(0.0, 0.7, 3.0)),
    slope=st.floats(0.02, 0.6),
    first=st.floats(0.0, 0.3),
    taken=st.integers(0, 3),
)
def test_the_most_probable_nodes_are_kept_as_long_as_they_pay(drafter, slope, first, taken):
    costs = Costs.of({1: 1.0, 2: 1.0 + first + slope, 10: 1.0 + first + 9 * slope}).with_required_nodes(taken)
    whole, tree = grown(drafter, None, depth=1), grown(drafter, costs, depth=1)
    for row in (0, 1):
        every = sorted((value(drafter, nodes) for nodes in paths_of(whole, row)), reverse=True)
        kept = sorted((value(drafter, nodes) for nodes in paths_of(tree, row)), reverse=True)
        base = costs.score(taken + 1)
        gains = [base + sum(every[:count]) - costs.score(taken + count + 1) for count in range(len(every) + 1)]
        assume(max(gains) - sorted(gains)[-2] > ROUNDING)  # of two that pay as well, rounding takes one
        assert kept == pytest.approx(every[: costs.worth(every)])


@given(drafter=path_drafters(steps=(0.0, 0.7, 3.0)), slope=st.floats(0.02, 0.6), draft=st.floats(0.0, 0.5))
def test_a_node_is_never_without_the_one_above(drafter, slope, draft):
    tree = grown(drafter, Costs.of({1: 1.0, 10: 1.0 + 9 * slope}, draft))
    for row in (0, 1):
        kept = paths_of(tree, row)
        assert all(len(nodes) == 2 or nodes[:-1] in kept for nodes in kept)


class NearlySure(PathDrafter):
    """The same with laws that leave hardly a doubt."""

    def raw(self, above: Path, level: int) -> Tensor:
        return super().raw(above, level) * 20


def test_a_level_is_drafted_only_where_it_promises_more_than_it_costs():
    """Of a drafter that is nearly sure, every level is worth a cheap forward pass, and none a dear one."""
    cheap, dear = (Costs.of({1: 1.0, 10: 1.2}, draft) for draft in (0.05, 1.5))
    calls = []
    for costs in (cheap, dear):
        drafter = NearlySure(5, 1)
        grown(drafter, costs)
        calls.append(drafter.calls)
    assert calls == [4, 1]


def test_rows_that_choose_together_have_trees_of_one_size():
    drafter = NearlySure(5, 1)
    costs = Costs.of({1: 1.0, 2: 1.1, 20: 6.0}).together([9] * 2, DraftRecord())
    tree = grown(drafter, costs)
    assert tree.valid.sum(1).tolist() == [tree.valid.shape[1]] * 2 and tree.levels > 0


def test_a_batch_to_which_nothing_pays_does_without_the_drafter():
    drafter, costs = PathDrafter(5, 1), DEAR.together([9] * 2, DraftRecord())
    assert grown(drafter, costs).tokens.tolist() == [[3], [0]]
    assert drafter.calls == 0


class Unsure(PathDrafter):
    """Of laws by which all tokens are as likely."""

    def raw(self, above: Path, level: int) -> Tensor:
        return super().raw(above, level) * 0


def test_a_batch_whose_drafts_have_no_node_that_pays_soon_does_without_the_drafter():
    """Two nodes of three are assumed to be accepted, and of these none is as likely as it is dear."""
    drafter, calls = Unsure(5, 1), 0
    costs = Costs.of({1: 1.0, 20: 8.6}, 0.05).together([9] * 2, DraftRecord())
    while grown(drafter, costs).levels == 0 and drafter.calls:
        calls += 1
    assert 0 < calls < 99
