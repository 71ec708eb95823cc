"""Nodes that pay, by the times of forward passes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.kernel.costs import Costs, DraftRecord, rising
from specframe.kernel.errors import InputError

CHANCES = st.lists(st.floats(0, 1), max_size=12).map(lambda found: sorted(found, reverse=True))


def test_the_unit_is_the_time_of_a_token_without_drafts():
    costs = Costs.of({1: 10.0, 2: 12.0, 4: 20.0}, draft=3.0)
    assert [costs.score(nodes) for nodes in (1, 2, 3, 4, 6)] == pytest.approx([1.0, 1.2, 1.6, 2.0, 2.8])
    assert costs.level == pytest.approx(0.3)


def test_rows_share_a_pass():
    """Two rows of two nodes take the time of four nodes, in which plain decoding gives each row 20 / 12 tokens."""
    costs = Costs(((1, 10.0), (2, 12.0), (4, 20.0)), draft=3.0, rows=2)
    assert costs.score(2) == pytest.approx(20 / 12) and costs.level == pytest.approx(3 / 12)
    assert costs.together([9] * 5, DraftRecord()) is costs
    assert replace(costs, rows=None).together([9] * 2, DraftRecord()) == costs


def test_rows_that_choose_together_have_as_many_nodes_as_pay_for_their_mean():
    """A pass has as many nodes of every row as of the one with most: what one row alone wants costs all of them."""
    apart = Costs(((1, 1.0), (2, 1.5), (8, 4.5)), rows=2)  # a row's second node takes two thirds of its first
    together = replace(apart, rows=None).together([9] * 2, DraftRecord())
    chances = [[0.9, 0.8], [0.1]]
    assert apart.counts(chances) == [2, 0]
    assert together.counts(chances) == [0, 0], "half a token each, which is less than a node costs both"
    assert together.counts([[0.9, 0.8], [0.9]]) == [1, 1]
    assert replace(apart, rows=None).together([9] * 1, DraftRecord()).record is None, "one row chooses alone"


def test_nodes_of_all_rows_compete_where_a_pass_takes_the_time_of_valid_ones():
    costs = Costs(((1, 1.0), (2, 1.5), (8, 4.5))).together([9] * 2, DraftRecord(), ragged=True)
    assert costs.spread(0) == pytest.approx(2.0) and costs.spread(1) == pytest.approx(2.0 * 2.0 / 1.5)
    assert costs.counts([[0.9, 0.8], [0.1]]) == [2, 0], "which does not pay if both rows have as many"
    assert costs.counts([[0.7, 0.1], [0.7]]) == [1, 1] and costs.counts([[0.5], [0.6]]) == [0, 0]
    assert costs.further([2, 0]) == pytest.approx([(costs.spread(3) - costs.spread(2)) / 2] * 2), "one row goes on"
    assert costs.single_row.counts([[0.9, 0.8]]) == [2] and not costs.single_row.ragged


@given(st.lists(CHANCES, min_size=2, max_size=4), st.integers(0, 2))
def test_no_other_numbers_of_nodes_bring_all_rows_more(chances, taken):
    one = Costs.of({1: 1.0, 2: 1.3, 4: 1.4, 8: 2.9, 16: 6.0}).with_required_nodes(taken)
    costs = one.together([9] * len(chances), DraftRecord(), ragged=True)
    counts = costs.counts(chances)
    chosen = sum(sum(row[:count]) for row, count in zip(chances, counts, strict=True))
    every = sorted((chance for row in chances for chance in row), reverse=True)
    gains = [sum(every[:n]) - costs.spread(n) for n in range(len(every) + 1)]
    assert chosen - costs.spread(sum(counts)) == pytest.approx(max(gains))


def test_after_more_tokens_a_pass_takes_longer():
    longer = ((1024, ((1, 30.0), (4, 60.0))), (4096, ((1, 90.0), (4, 240.0))))
    costs = Costs(((1, 10.0), (2, 12.0), (4, 20.0)), draft=3.0, context=128, longer=longer)
    assert costs.after(100) is costs and costs.after(128) is costs
    assert costs.after(1024).passes == ((1, 30.0), (2, 40.0), (4, 60.0))
    assert costs.after(2560).passes == ((1, 60.0), (2, 90.0), (4, 150.0)), "half of the way"
    assert costs.after(50_000).passes == costs.after(4096).passes == ((1, 90.0), (2, 140.0), (4, 240.0))
    assert costs.after(2565) is costs.after(2560), "a search's table of costs serves for many cycles"
    assert costs.after(4096).level == pytest.approx(3 / 90), "a drafter costs less of a pass there"
    assert replace(costs, longer=()).after(9999).passes == costs.passes


def test_rows_choose_by_the_longest_and_one_alone_by_its_own():
    longer = ((1024, ((1, 30.0), (4, 60.0))),)
    costs = Costs(((1, 10.0), (4, 20.0)), context=128, longer=longer)
    assert costs.together([5, 1024], DraftRecord()).passes == longer[0][1]
    assert replace(costs, rows=1).together([1024], DraftRecord()).passes == longer[0][1]
    assert replace(costs, rows=2).together([5, 1024], DraftRecord()).passes == costs.passes, "numbers are a row's own"


def test_a_record_has_the_rates_of_recent_drafts():
    record = DraftRecord()
    assert record.rates == (0.5, 0.75, 1.0), "before any"
    for _ in range(1000):
        record.add(8, 2, 16, 3)
    assert record.rates == pytest.approx((0.25, 2.0, 3.0), abs=0.02)
    for _ in range(1000):
        record.add(8, 16, 32, 1)
    assert record.rates == pytest.approx((2.0, 4.0, 1.0), abs=0.02), "the former are forgotten"


def test_drafts_that_did_not_pay_are_tried_again_later_each_time():
    costs = Costs(((1, 10.0), (4, 11.0), (64, 31.0)), draft=1.0)
    record, waited = DraftRecord(), list[int]()
    batch = costs.together([9] * 4, record, left=400)
    for _ in range(6):
        record.add(1000, 0, 1000, 1)
        waited.append(0)
        while not batch.drafts_now():
            waited[-1] += 1
    assert waited == [256, 512, 1024, 2048, 4096, 4096]


def test_further_rows_and_their_drafts_cost_time_of_their_own():
    costs = Costs(((1, 10.0), (2, 12.0), (8, 20.0)), row=2.0, row_drafted=1.0)
    costs = costs.together([9] * 2, DraftRecord(), ragged=True)
    assert costs.score(1) == 1.0 and costs.score(4) == pytest.approx(23 / 14)
    assert [costs.spread(nodes) for nodes in (0, 6)] == pytest.approx([2.0, 2 * 23 / 14])
    assert costs.single_row.score(2) == pytest.approx(1.2)
    assert replace(costs, draft=3.0, draft_row=1.0).level == pytest.approx(4 / 14), "a token of each row takes 14"


def test_rows_draft_where_that_repays_what_the_drafter_reads_for_them():
    """By what drafts have brought, at the costs for the rows of now; at first half a token a node is assumed."""
    one = Costs(((1, 10.0), (4, 11.0), (64, 31.0)), draft=1.0, read=0.5)
    assert one.drafts_now() and one.together([9], DraftRecord(), unread=10**6).drafts_now(), "one row alone does"
    record = DraftRecord()
    assert one.together([9] * 4, record, unread=400, left=400).drafts_now()
    assert not one.together([9] * 4, record, unread=400, left=40).drafts_now(), "soon at their ends"
    assert not replace(one, row_drafted=9.0).together([9] * 4, record, unread=400, left=400).drafts_now()
    record.add(1000, 0, 1000, 1)
    assert not one.together([9] * 4, record, unread=400, left=400).drafts_now(), "nothing was accepted"
    assert not replace(one, read=0.0).together([9] * 4, record, unread=400, left=400).drafts_now(), "free to read, too"


@pytest.mark.parametrize(
    ("passes", "worth"),
    [
        ({1: 1.0, 9: 1.0}, 3),  # nodes that cost nothing
        ({1: 1.0, 9: 9.0}, 0),  # a node costs a token
        ({1: 1.0, 9: 5.0}, 1),  # half a token
        ({1: 1.0, 9: 3.0}, 2),  # a quarter
        ({1: 1.0, 2: 1.9, 9: 1.9}, 3),  # the first is dear, the others come with it
        ({1: 1.0, 2: 3.0, 9: 3.0}, 0),  # too dear for all of them together
    ],
)
def test_nodes_are_worth_it_while_they_bring_more_than_they_cost(passes, worth):
    assert Costs.of(passes).worth([0.7, 0.4, 0.2]) == worth


@given(CHANCES, st.integers(0, 4))
def test_no_other_number_of_nodes_brings_more(chances, taken):
    costs = Costs.of({1: 1.0, 2: 1.3, 4: 1.4, 8: 2.9, 16: 6.0}).with_required_nodes(taken)
    gains = [sum(chances[:n]) - costs.score(taken + n + 1) for n in range(len(chances) + 1)]
    assert gains[costs.worth(chances)] == pytest.approx(max(gains))


def test_nothing_is_worth_it_without_a_chance():
    assert Costs.of({1: 1.0, 2: 1.0}).worth([0.0, 0.0]) == 0 == Costs.of({1: 1.0}).worth([])


def test_times_that_fall_are_evened_out():
    assert rising([(1, 3.0), (2, 1.0), (4, 5.0)]) == [(1, 2.0), (2, 2.0), (4, 5.0)]


@pytest.mark.parametrize("passes", [{}, {2: 1.0}, {1: 0.0, 2: 1.0}])
def test_costs_without_plain_decoding_are_refused(passes):
    with pytest.raises(InputError, match="costs"):
        Costs.of(passes)


def test_one_timed_size_means_that_every_node_costs_a_token():
    assert math.isclose(Costs.of({1: 2.0}).score(3), 3.0)
