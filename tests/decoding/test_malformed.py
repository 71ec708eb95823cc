"""Errors in a verdict's form, by name."""

import pytest
import torch

from specframe.decoding.verification import malformed
from specframe.kernel.types import Draw, TokenTree, Verdict

TOKENS = torch.tensor([[0, 1, 2, 3, 0]])
PARENT = torch.tensor([[-1, 0, 0, 1, -1]])
TREE = TokenTree(TOKENS, PARENT, torch.tensor([[True, True, True, True, False]]), TOKENS * 0 + Draw.TOP, levels=2)


def verdict(path, length, bonus=2):
    return Verdict(torch.tensor([path]), torch.tensor([length]), torch.tensor([bonus]))


@pytest.mark.parametrize(
    "found", [verdict([-1, -1], 0), verdict([1, -1], 1), verdict([1, 3], 2), verdict([2, -1], 1, 3)]
)
def test_a_path_of_valid_nodes_and_a_token_is_well_formed(found):
    assert malformed(TREE, found, vocab=4) is None and malformed(TREE, found) is None


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (verdict([1, 3], 1), "the length is 1, but the path is"),
        (verdict([1, -1], 2), "the length is 2, but the path is"),
        (verdict([-1, 1], 1), "the length is 1, but the path is"),
        (verdict([0, -1], 0), "the length is 0, but the path is"),
        (verdict([0, -1], 1), "has a node that is not valid"),
        (verdict([4, -1], 1), "has a node that is not valid"),
        (verdict([5, -1], 1), "has a node that is not valid"),
        (verdict([3, -1], 1), "is not a path"),
        (verdict([2, 3], 2), "is not a path"),
        (verdict([1, -1], 1, -1), "the bonus -1 is no token of 4"),
        (verdict([1, -1], 1, 4), "the bonus 4 is no token of 4"),
        (verdict([1], 1), "the path has shape"),
        (Verdict(torch.tensor([[1, -1]]), torch.tensor([1.0]), torch.tensor([2])), "`length` has shape"),
        (Verdict(torch.tensor([[1, -1]]), torch.tensor([1]), torch.tensor([[2]])), "`bonus` has shape"),
    ],
)
def test_what_is_wrong_is_named(found, problem):
    assert problem in str(malformed(TREE, found, vocab=4))
