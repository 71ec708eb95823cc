"""Decoding, batched and cached, says what the paper's forward over the whole text says."""

from __future__ import annotations

import chimera_fakes as fakes
import chimera_reference as reference
import pytest
import torch

from specframe.components.heads.full import Full
from specframe.testing import GivenSession, GrowingTree
from specframe_chimera.drafter import Chimera

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # norms and rotary angles are float32 in transformers
OPTIONS = [
    {},
    {"residual": False, "ngram": 1},
    {"ngram": 5, "head": Full()},
    {"ngram": 2, "cache": 3},
]


@torch.no_grad()
def check(drafter: Chimera, session: GivenSession, seed: int = 0) -> None:
    """Grows a ragged tree, asks for nodes in several orders and depths, and compares each with the reference."""
    tree = GrowingTree(session.root, fakes.VOCAB, seed)

    def compare(nodes: list[int]) -> None:
        found = drafter.expand(tree.frontier(nodes)).logits
        assert found.shape == (len(session.tokens), len(nodes), 1, fakes.VOCAB)
        for row, (features, committed) in enumerate(zip(session.features, session.tokens, strict=True)):
            for place, node in enumerate(nodes):
                path = tree.path(node)
                tokens = committed.tolist() + tree.tokens[row, path].tolist()
                wanted = reference.logits(drafter, features, tokens, len(path) + 1)
                torch.testing.assert_close(found[row, place, 0], wanted, **CLOSE)

    compare([0])
    first = [tree.add(0), tree.add(0), tree.add(0)]
    compare(first)
    second = [tree.add(first[1]), tree.add(first[0]), tree.add(first[1])]
    compare([second[2], second[0]])
    compare([first[2], second[1], 0, second[0]])  # of all depths at once
    third = [tree.add(second[0])]
    compare(third)
    compare([0])  # and the root once more, beside a tree that has grown


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_decoding_is_the_papers_forward(options):
    drafter = fakes.bound(heads=4, **options)
    session = fakes.session(3)
    drafter.open(8, 64)
    drafter.commit(session.admit([5, 1, 9]))
    check(drafter, session)
    check(drafter, session, seed=9)  # rejected, and drafted anew
    for cycle, counts in enumerate([[1, 3, 2], [1, 1, 1], [4, 2, 1]]):
        drafter.commit(session.advance(counts, padding=cycle % 3))
        check(drafter, session, cycle)
    drafter.keep(session.keep([2, 0]))
    check(drafter, session)
    drafter.commit(session.advance([2, 3]))
    drafter.commit(session.advance([1, 2]))  # two commits without a draft between
    drafter.keep(session.keep([1]))  # and a row gone before they were used
    check(drafter, session)
    fresh = fakes.session(2, seed=7)
    drafter.open(8, 64)
    drafter.commit(fresh.admit([3, 2]))
    check(drafter, fresh)


@torch.no_grad()
def test_the_cache_of_keys_and_values_grows():
    drafter, session = fakes.bound(heads=1), fakes.session(2)
    drafter.open(8, 64)
    drafter.commit(session.admit([2, 3]))
    drafter._session.spare = 0
    for count in (1, 4, 2, 7, 1):
        drafter.commit(session.advance([count, 1]))
        found = drafter.expand(GrowingTree(session.root, fakes.VOCAB).frontier([0])).logits
        for row in range(2):
            wanted = reference.logits(drafter, session.features[row], session.tokens[row].tolist(), 1)
            torch.testing.assert_close(found[row, 0, 0], wanted, **CLOSE)
