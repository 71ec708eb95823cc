"""Counts, for each token of the rows' answers, of what a drafter would read."""

import pytest
import torch
from row_cycles import admission, cycle_without_draft

from specframe.testing.policies import cycle_of
from specframe_trees.texts import RowTexts


def test_what_a_drafter_has_put_off_is_read_before_it_drafts():
    texts = RowTexts()
    texts.observe(admission(torch.ones(2, 30, dtype=torch.int64)))
    assert texts.unread([9, 19]) == pytest.approx(60 / (10 + 20))
    texts.drafted()
    plain = cycle_of(*cycle_without_draft(2), 2)
    for _ in range(5):
        texts.observe(plain)
    assert texts.unread([4, 14]) == pytest.approx(60 / 30), "no more than before it was read"
    for _ in range(35):
        texts.observe(plain)
    assert texts.unread([0, 9]) == pytest.approx(80 / (41 + 50)), "forty tokens of each wait now"


def test_answers_are_expected_to_be_as_long_as_those_that_ended():
    texts = RowTexts()
    texts.observe(admission(torch.ones(3, 30, dtype=torch.int64)))
    assert texts.unread([]) == 0, "nothing is known"
    for _ in range(11):
        texts.observe(cycle_of(*cycle_without_draft(3), 2))
    texts.keep([1])
    assert texts.unread([500]) == pytest.approx(41 / 24), "12 tokens as the others, and as many again as it has"
    texts.observe(admission(torch.ones(1, 24, dtype=torch.int64)))
    assert texts.unread([500, 500]) == pytest.approx((41 + 24) / (24 + 12))
    texts.keep([])
    assert texts.unread([]) == 0 and texts.longest == 0
