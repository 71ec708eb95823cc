"""LogitSpec: guesses from the last logits, and copies after them."""

from __future__ import annotations

import pytest
import torch

from specframe import compose
from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import InputError
from specframe.kernel.types import Cycle, Scores, TokenTree, Verdict
from specframe.testing import check_drafter
from specframe_text.lookahead.logitspec import LogitSpec
from tests.components.path_drafter import assert_sound, path
from tests.components.sessions import first, later

VOCAB = 12


def scored(ranked: list[list[int]]) -> Scores:
    """Logits [1, nodes, V] with the given order of the likeliest tokens at every node."""
    logits = torch.zeros(1, len(ranked), VOCAB)
    for node, tokens in enumerate(ranked):
        logits[0, node, tokens] = torch.arange(len(tokens), 0, -1.0)
    return Scores(logits, {})


def begun(drafter: LogitSpec, text: list[int], ranked: list[int]) -> None:
    """A session of one row, whose last token came from logits with this order."""
    drafter.open(1, 99)
    committed = first([text])
    drafter.commit(committed)
    root = TokenTree.root_only(torch.tensor([text[-2]]))
    verdict = Verdict(torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0]), torch.tensor([text[-1]]))
    drafter.observe(Cycle(root, scored([ranked]), verdict, committed))


def drafted(drafter: LogitSpec, root: int) -> list[tuple[int, ...]]:
    tree = drafter.propose(torch.tensor([root]), None, None)  # type: ignore[arg-type]
    assert_sound(tree, tree.levels)
    return [path(tree, 0, node)[1:] for node in range(1, tree.tokens.shape[1])]


def test_the_guesses_stand_below_the_root_with_copies_after_them() -> None:
    drafter = LogitSpec(guesses=3, nodes=99)
    begun(drafter, [3, 4, 5, 6, 7, 3, 4, 5, 6, 7, 1], [1, 3, 9])  # 1 came: it is no guess of what follows it
    assert drafted(drafter, 1) == [(3,), (3, 4), (3, 4, 5), (3, 4, 5, 6), (3, 4, 5, 6, 7), (9,)]


def test_the_texts_own_copy_comes_first() -> None:
    drafter = LogitSpec(guesses=2, nodes=99, cap=1)
    begun(drafter, [1, 2, 5, 1, 2, 5, 1], [1, 8])
    assert drafted(drafter, 1) == [(2,), (8,)]


def test_the_logits_of_the_last_accepted_node_are_the_ones() -> None:
    drafter = LogitSpec(guesses=1, nodes=99)
    begun(drafter, [0, 1], [3])
    tree = TokenTree.root_only(torch.tensor([1])).graft([0], [[2, 4]])
    verdict = Verdict(torch.tensor([[1, -1]]), torch.tensor([1]), torch.tensor([7]))
    committed = later([[2, 7]])
    drafter.commit(committed)
    drafter.observe(Cycle(tree, scored([[5], [6], [8]]), verdict, committed))
    assert drafted(drafter, 7) == [(6,)]


def test_later_guesses_have_shorter_copies_and_a_budget_ends_the_tree() -> None:
    text = [token for _ in range(3) for token in range(1, 12)] + [0]
    drafter = LogitSpec(guesses=11, nodes=99)
    begun(drafter, text, list(range(1, 12)))
    found = drafted(drafter, 0)
    lengths = [max(len(p) for p in found if p[0] == guess) for guess in range(1, 12)]
    assert lengths == [5] * 8 + [4] * 3
    small = LogitSpec(guesses=11, nodes=8, cap=5)
    begun(small, text, list(range(1, 12)))
    assert drafted(small, 0) == found[:7]


def test_rows_are_each_their_own() -> None:
    prompts = [[0, 1, 2, 0, 1], [3, 3, 4], [5, 0, 5, 0]]
    made = compose(target=TableTarget(vocab=8, sharpness=2.0), drafter=LogitSpec(guesses=3))
    alone = [made.generate([prompt], max_new_tokens=30) for prompt in prompts]
    together = made.generate(prompts, max_new_tokens=30)
    assert together.tokens == [each.tokens[0] for each in alone]
    cycles = sum(each.acceptance.cycles for each in alone)
    assert together.acceptance.cycles == cycles


def test_conformance() -> None:
    check_drafter(lambda: LogitSpec(nodes=5, guesses=2, cap=2))


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="logitspec needs nodes and guesses of at least 1, got 0 and 32"):
        LogitSpec(nodes=0)
    assert LogitSpec(nodes=4, cap=9).promise.nodes == 10
